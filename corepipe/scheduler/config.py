"""The limits of one replica's scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one replica.

    A batch has at most `max_num_batched_tokens` tokens; at most `max_num_seqs` requests run at a time.
    `stages`: of the pipeline that computes the batches; so many prompts may be on their way through it.
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
    stages: int = 1
    max_cached_blocks: int | None = None

    @property
    def most_in_flight(self) -> int:
        """Batches that may be under way at once: one more than the stages can cover what is between them."""
        return self.stages + 1 if self.stages > 1 else 1

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.name != "prefix_cache" and value is not None and value < 1:
                raise ValueError(f"{limit.name} must be at least 1, not {value}")
