"""A batch: its requests, sampling parameters and masks, and the call that computes it."""
