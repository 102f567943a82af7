"""The command line: one file a command, with its flags; `run` has what is heavy to import."""
