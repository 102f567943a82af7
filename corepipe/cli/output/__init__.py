"""Output of the commands: the console, tables, progress and results."""
