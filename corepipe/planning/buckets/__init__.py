"""The lengths to compile graphs for: what is padded to them, and what compiling takes."""
