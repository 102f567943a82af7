"""The current dialect, `nki`: destinations first, and no masks."""
