"""Known tasks beyond GLUE, a user's own file, and a made-up language."""
