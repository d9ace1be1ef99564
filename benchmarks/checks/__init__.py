"""Checks of whole runs: resuming after kills, several writers, several devices, and scaling."""
