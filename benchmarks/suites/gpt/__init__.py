"""Suites of GPT."""
