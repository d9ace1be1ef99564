"""Tokenizers: text to ids with offsets, packed for each model."""

from keras_plm.tokenizers.byte_pair import BytePair
from keras_plm.tokenizers.characters import Characters
from keras_plm.tokenizers.encoded import Encoded
from keras_plm.tokenizers.text import open_text
from keras_plm.tokenizers.word_piece import WordPiece
from keras_plm.tokenizers.words import Words

__all__ = ["BytePair", "Characters", "Encoded", "WordPiece", "Words", "open_text"]
