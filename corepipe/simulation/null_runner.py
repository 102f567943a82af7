"""A runner that computes nothing, for simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from corepipe.engine.batch.arrays import adapter_rows
from corepipe.engine.batch.encoding import Encoding
from corepipe.engine.batch.requests import NO_ADAPTER
from corepipe.engine.batch.runner import StepResult, SubmittedStep
from corepipe.engine.loop.synthetic_acceptance import shape_of
from corepipe.neuron.step import AdapterKind, StepOutput
from corepipe.scheduler.request import Batch, Chunk, Request
from corepipe.simulation.simulated_request import SimulatedRequest

_TOKEN, _NOTHING = (0,), ()
"""The tokens that are drawn of a chunk: each is 0."""

_NO_IDS = np.empty(0, np.int32)
_NO_OUTPUT = StepOutput(_NO_IDS, np.empty(0, np.float32), _NO_IDS, np.empty(0, np.float32), None, 0.0)


class NullRunner:
    """Implements `replica.BatchRunner`: every batch is ready at once, every token is 0.

    encoding: of a model that generates nothing (None: it does).  kinds: of LoRA adapters, by their numbers in
    sessions.
    """

    def __init__(
        self, encoding: Encoding | None = None, kinds: Mapping[int, AdapterKind] | None = None
    ) -> None:
        self._encoding = encoding
        self._kinds = kinds

    def add(self, request: Request) -> None:
        """Does nothing: no state is kept of a request."""

    def remove(self, request_id: str) -> None:
        """Does nothing: no state was kept of the request."""

    def submit(self, batch: Batch) -> SubmittedStep:
        chunks = batch.chunks
        results = sum([c.samples for c in chunks])
        if self._encoding is not None:
            return SubmittedStep(0, batch, [], {}, _NO_IDS, self._encoding.shape(chunks, results))
        shape = shape_of(chunks, results)
        if self._kinds:
            shape = shape._replace(adapters=adapter_rows(chunks, [*map(_adapter, chunks)], self._kinds))
        return SubmittedStep(0, batch, [], {}, _NO_IDS, shape)

    def wait(self, step: SubmittedStep) -> StepResult:
        if self._encoding is not None:
            return StepResult(step, _NO_OUTPUT, [_NOTHING] * len(step.batch.chunks))
        if step.shape.each > 1:
            return StepResult(step, _NO_OUTPUT, [_drawn(chunk) for chunk in step.batch.chunks])
        return StepResult(step, _NO_OUTPUT, [_TOKEN if c.samples else _NOTHING for c in step.batch.chunks])


def _adapter(chunk: Chunk) -> int:
    """Returns the number of a chunk's LoRA adapter; NO_ADAPTER: it has none."""
    assert isinstance(chunk.request, SimulatedRequest)
    number = chunk.request.session.adapter
    return NO_ADAPTER if number is None else number


def _drawn(chunk: Chunk) -> Sequence[int]:
    """Returns a token for the chunk's last known token and one for each of its drafts."""
    return _TOKEN * (1 + len(chunk.drafts)) if chunk.samples else _NOTHING
