"""The null executor: computes nothing, keeps the order of batches.  For tests of what runs executors."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from corepipe.neuron.step import SamplingBatch, StepInputs, StepOutput


class NullExecutor:
    """Implements `program.Executor`: every batch is ready at once.

    The token of logit row r is a fixed function of the row's last token and position, in
    [0, vocab_size); logprobs are NaN, alternatives -1.  Without sampling the values are zeros.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._pending: deque[tuple[int, StepOutput]] = deque()
        self._next = 0

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        ticket, self._next = self._next, self._next + 1
        self._pending.append((ticket, self._output(inputs, sampling)))
        return ticket

    def give_masks(self, ticket: int, masks: npt.NDArray[np.int32]) -> None:
        """Nothing is drawn, so that nothing is forbidden."""

    def wait(self, ticket: int) -> StepOutput:
        """The oldest batch's result.  Raises ValueError unless tickets are redeemed once and in order."""
        if not self._pending or self._pending[0][0] != ticket:
            raise ValueError(f"ticket {ticket} is not the oldest batch in flight")
        return self._pending.popleft()[1]

    def close(self) -> None:
        self._pending.clear()

    def _output(self, inputs: StepInputs, sampling: SamplingBatch | None) -> StepOutput:
        rows = len(inputs.logit_rows)
        if sampling is None:
            values = np.zeros((rows, self._vocab_size), np.float32)
            return _step(np.empty(0, np.int32), 0, values)
        asked = int(sampling.top_logprobs.max(initial=0))
        return _step(self._tokens(inputs, sampling), asked, None)

    def _tokens(self, inputs: StepInputs, sampling: SamplingBatch) -> npt.NDArray[np.int32]:
        last = inputs.tokens[inputs.logit_rows].astype(np.int64)
        position = inputs.positions[inputs.logit_rows].astype(np.int64)
        drawn = (last * 31 + position * 7 + 1) % self._vocab_size
        return np.where(sampling.chosen >= 0, sampling.chosen, drawn).astype(np.int32)


def _step(
    tokens: npt.NDArray[np.int32],
    alternatives: int,
    values: npt.NDArray[np.float32] | None,
) -> StepOutput:
    rows = len(tokens)
    return StepOutput(
        tokens=tokens,
        logprobs=np.full(rows, np.nan, np.float32),
        top_ids=np.full((rows, alternatives), -1, np.int32),
        top_logprobs=np.full((rows, alternatives), np.nan, np.float32),
        values=values,
        seconds=0.0,
        ranks=np.ones(rows, np.int32),
    )
