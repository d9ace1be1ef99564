"""Runs of a task, an encoder, a method and a seed: from settings to results."""
