"""Suites of BERT."""
