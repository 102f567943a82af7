"""Measured rows: predictions for them, scores against them, constants fitted to them."""
