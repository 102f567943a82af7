"""A workload through a deployment in virtual time, and what it found."""
