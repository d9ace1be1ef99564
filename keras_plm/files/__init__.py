"""Lowest rank: atomic files, arrays, saving of models, checks of arguments."""
