"""Checkpoints: the files that weights are read from."""
