"""Times of kernels: costs of instructions, their queues, and what the compiler does."""
