"""File formats of examples and of word vectors."""
