"""Calibration: measured rows, predictions and scores for them, and constants fitted to them."""
