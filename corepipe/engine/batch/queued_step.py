"""The step after the one that is being computed, queued before the scheduler asks for it: no Python runs
between the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.engine.batch.sampling import Ids
from corepipe.neuron.inputs import ChainingExecutor
from corepipe.scheduler.request import Batch, Chunk

Repeats = Callable[[Batch], bool]
"""Returns whether the next batch computes the tokens that this one draws and nothing else, as far as can be
known now."""


@dataclass(slots=True)
class QueuedStep:
    """A step that is queued: its ticket, the chunks of the step before, and the logprobs that its rows
    report.

    preemptions: those of the requests of these chunks, so far.
    """

    ticket: int
    chunks: Sequence[Chunk]
    preemptions: Sequence[int]
    top_logprobs: Ids

    def is_before(self, batch: Batch) -> bool:
        """Tells whether this batch computes the tokens that the chunks have drawn, and nothing else."""
        return len(batch.chunks) == len(self.chunks) and all(
            next_.request is chunk.request
            and next_.start == chunk.start + chunk.count
            and next_.count == 1
            and not next_.drafts
            and next_.request.num_preemptions == preemptions
            for chunk, preemptions, next_ in zip(self.chunks, self.preemptions, batch.chunks, strict=True)
        )


class StepQueue:
    """Queues the step that the scheduler will ask for if nothing else happens, and checks whether it was the
    right one.

    The scheduler decides as it would without: a step that it does not ask for is dropped, and the positions
    that such a step has written to the cache are computed again before they are read.
    """

    def __init__(self, executor: ChainingExecutor, repeats: Repeats) -> None:
        self._executor = executor
        self._repeats = repeats
        self._foreseen: QueuedStep | None = None

    def take(self, batch: Batch) -> QueuedStep | None:
        """Returns the step that was queued for this batch; None where there is none, and the batch has to be
        submitted."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is None:
            return None
        if not foreseen.is_before(batch):
            self._executor.drop(foreseen.ticket)
            return None
        return foreseen if self._executor.adopt(foreseen.ticket) else None

    def queue(self, ticket: int, batch: Batch, top_logprobs: Ids) -> None:
        """Queues the step behind a submitted one, in which each sequence draws a token by its logits alone,
        if the scheduler will ask for it."""
        if not self._repeats(batch):
            return
        requests = [chunk.request for chunk in batch.chunks]
        ends = frozenset[int]().union(*(request.stop_ids for request in requests))
        following = self._executor.go_on(ticket, np.fromiter(ends, np.int32))
        preemptions = [request.num_preemptions for request in requests]
        self._foreseen = QueuedStep(following, batch.chunks, preemptions, top_logprobs)
