"""Measurements, one file per subject."""
