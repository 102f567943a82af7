"""The loop: replicas with a scheduler each, the order of their steps, and the outputs of requests."""
