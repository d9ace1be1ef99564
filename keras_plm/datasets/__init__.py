"""Tasks beyond GLUE, tasks from a user's file, and a generated language."""
