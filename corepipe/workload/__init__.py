"""Workloads: arrivals, lengths, objectives and recorded traces."""
