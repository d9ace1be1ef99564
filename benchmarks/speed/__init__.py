"""Measurements of time and memory of our implementations and their peers, in one process."""
