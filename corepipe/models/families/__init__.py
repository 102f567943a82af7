"""The families of models: one file each that reads a config and builds a Graph, and what they are made of."""
