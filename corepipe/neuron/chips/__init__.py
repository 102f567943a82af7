"""Emulated hardware and its software: chips, instances, runtime profiles and rates."""
