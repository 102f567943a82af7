"""Fleets: one endpoint over several machines, and one journal in front of their engines."""
