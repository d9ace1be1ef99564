"""Checks of whole runs: resuming after kills, several writers, padding, devices and more."""
