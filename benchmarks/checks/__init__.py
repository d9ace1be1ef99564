"""Checks of whole runs: resume after kills, several devices, scaling on paper."""
