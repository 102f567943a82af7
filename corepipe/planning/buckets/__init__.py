"""Buckets: the lengths to compile graphs for, their padding and their compile time."""
