"""Integers of weights, rotations, slopes and distances as models and kernels take them, in numpy."""
