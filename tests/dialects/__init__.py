"""Dialects of chat: made-up requests in the form of each, and the parts of their answers."""
