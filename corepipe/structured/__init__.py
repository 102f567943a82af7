"""Structured output: JSON schemas, grammars and structural tags, checked and compiled for llguidance."""
