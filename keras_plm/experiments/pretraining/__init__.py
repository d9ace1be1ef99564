"""Pre-training of encoders from raw text."""
