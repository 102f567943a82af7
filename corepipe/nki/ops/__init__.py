"""Kernels in place of a model's Ops: what they are called with, compared with, and how long they take."""
