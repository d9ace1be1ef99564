"""Results as tables, pictures and one page."""
