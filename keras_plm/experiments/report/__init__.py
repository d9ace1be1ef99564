"""Results as tables, plots and one page."""
