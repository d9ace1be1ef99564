"""Measurements of time and memory, each next to a peer in the same process."""
