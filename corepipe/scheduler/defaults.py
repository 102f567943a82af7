"""Limits of a batch and of the queue where none are asked for, alike for server, library and simulation."""

MAX_NUM_SEQS = 32
"""Sequences in a batch."""
MAX_NUM_BATCHED_TOKENS = 512
"""Tokens in a batch."""
BLOCK_SIZE = 32
"""Positions in a KV block."""
MAX_QUEUED_REQUESTS = 1024
"""Requests that may wait."""
MAX_QUEUED_TOKENS = 1_000_000
"""Tokens of prompts that may wait."""
