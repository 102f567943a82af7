"""Drafters: each file is one way to draft the next tokens of an answer."""
