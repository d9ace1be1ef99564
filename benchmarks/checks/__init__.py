"""Checks of whole runs: resuming after kills, several devices, scaling by formulas."""
