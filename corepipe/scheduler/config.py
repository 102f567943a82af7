"""The limits of one replica's scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one replica.

    A batch has at most `max_num_batched_tokens` tokens; at most `max_num_seqs` requests run at a time.
    `stages`: of the pipeline that computes the batches; so many prompts may be on their way through it.
    `max_cached_blocks`: blocks kept for the prefix cache beyond those of running requests (None: all).
    `whole_prompts`: a prompt is computed in one batch or not at all, as each of its tokens attends to all of
    them.  `keeps_state`: something of a request stays on the device from batch to batch; otherwise no request
    holds a block, and there may be none.
    `windows`: of each group of layers the latest positions that it looks back over, its own among them (None:
    all).  A block holds `block_size` positions of the layers of one group.
    `state_span`: where states of recurrent layers stay to be found, the positions from one to the next; a
    chunk ends there at the latest (None: a block is the state of a whole sequence, or there are none).
    `num_states`: blocks of states beside those of keys and values, of which at most `max_cached_states` are
    kept for the prefix cache (0: all layers are recurrent, and a block is a state of `block_size` positions).
    `draft_rows`: tokens of a batch up to which drafts are added to it (None: as many as it may have).
    Raises ValueError for a limit or a window below 1, for no group, for states within blocks, for prompts of
    which no batch holds one whole, and for whole prompts of what keeps something: that has no need of them.
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
    whole_prompts: bool = False
    keeps_state: bool = True
    windows: tuple[int | None, ...] = (None,)
    state_span: int | None = None
    num_states: int = 0
    max_cached_states: int | None = None
    draft_rows: int | None = None

    @property
    def tables(self) -> int:
        """Block tables of a request, one beside the other: one for each group, and one of states."""
        return len(self.windows) + (self.num_states > 0)

    @property
    def most_in_flight(self) -> int:
        """Batches that may be under way at once: one more than the stages can cover what is between them."""
        return self.stages + 1 if self.stages > 1 else 1

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            least = (
                0
                if limit.name == "num_states" or (limit.name == "num_blocks" and not self.keeps_state)
                else 1
            )
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise ValueError(f"{limit.name} must be at least {least}, not {value}")
        if not self.windows or any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows must be at least 1, of at least one group, not {self.windows}")
        if self.num_states and (self.state_span is None or self.state_span % self.block_size):
            raise ValueError(f"state_span must be a multiple of block_size, not {self.state_span}")
        if self.whole_prompts and self.keeps_state:
            raise ValueError("whole_prompts: a model that keeps something computes a prompt in parts")
        if self.whole_prompts and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} holds no whole prompt of "
                f"max_model_len = {self.max_model_len} tokens"
            )
