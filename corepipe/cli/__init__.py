"""The command line: a file for each command and its flags; `run` holds what is slow to import."""
