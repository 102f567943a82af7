"""Fuzz targets: readers of untrusted bytes accept any bytes, and raise no errors but their own.

`make fuzz` runs them under atheris (libFuzzer, guided by coverage); tests/fuzz runs a few thousand mutations
of each target's seeds with the suite.
"""
