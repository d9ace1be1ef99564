"""Lowest rank: settings and arrays in files, saving of models, sequences that users pass."""
