"""The host: executors of Programs, and weights packed for the kernels."""
