"""Runs of kernels: their inputs, their results and how these are printed."""
