"""The limits of one replica's scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one replica.

    A batch has at most `max_num_batched_tokens` tokens; at most `max_num_seqs` requests run at a time.
    `micro_batches`: batches that a pipeline wants in flight; the running requests are shared out to them,
    and take turns where it is full with fewer.
    `max_cached_blocks`: blocks kept for the prefix cache beyond those of running requests (None: all).
    Raises ValueError for a limit below 1.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_cache: bool
    max_queued_requests: int
    max_queued_tokens: int
    micro_batches: int = 1
    max_cached_blocks: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.name != "prefix_cache" and value is not None and value < 1:
                raise ValueError(f"{limit.name} must be at least 1, not {value}")
