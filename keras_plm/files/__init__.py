"""Files of settings and arrays, saving of models, sequences that users pass."""
