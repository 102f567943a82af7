"""Metrics: what is measured, and the names under which it is exported."""
