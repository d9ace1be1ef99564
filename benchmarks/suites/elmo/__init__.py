"""Suites of ELMo."""
