"""Simulations: a workload through a deployment in virtual time, and a report."""
