"""Arithmetic of the reference executor, in numpy."""
