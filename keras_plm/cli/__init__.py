"""The console command `keras-plm`: one file for each group of commands."""
