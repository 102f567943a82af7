"""Fuzz targets: what reads bytes of strangers takes any bytes, and answers with its own error or not at all.

`make fuzz` runs them under atheris (libFuzzer, guided by coverage); tests/fuzz runs a few thousand mutations
of each target's seeds with the suite.
"""
