"""Models: from a path to a configuration, a Graph, weights and a tokenizer."""
