"""The null executor: deterministic tokens, batches in order, the shapes of the contract."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from corepipe.neuron.inputs import Executor, SamplingBatch, StepInputs
from tests.null_executor import NullExecutor

VOCAB = 101
INPUTS = StepInputs(
    tokens=np.array([5, 6, 7, 90], np.int32),
    positions=np.array([0, 1, 2, 44], np.int32),
    sequence_starts=np.array([0, 3, 4], np.int32),
    block_tables=np.zeros((2, 4), np.int32),
    logit_rows=np.array([2, 3], np.int32),
)


def _sampling(rows: int = 2, **given: np.ndarray) -> SamplingBatch:
    zeros = {f.name: np.zeros(rows, np.int32) for f in fields(SamplingBatch)}
    none = np.full(rows, -1, np.int32)
    return SamplingBatch(**(zeros | {"chosen": none, "masked": none} | given))


def test_tokens_depend_on_the_row_alone():
    executor: Executor = NullExecutor(VOCAB)
    first = executor.wait(executor.submit(INPUTS, _sampling()))
    again = executor.wait(executor.submit(INPUTS, _sampling()))
    alone = replace(INPUTS, logit_rows=np.array([3], np.int32))
    single = executor.wait(executor.submit(alone, _sampling(1)))
    assert first.tokens.dtype == np.int32
    assert first.tokens.tolist() == again.tokens.tolist()
    assert single.tokens[0] == first.tokens[1]
    assert ((first.tokens >= 0) & (first.tokens < VOCAB)).all()
    assert first.values is None
    assert first.seconds == 0.0
    executor.close()


def test_shapes_follow_what_was_asked():
    executor = NullExecutor(VOCAB)
    asked = _sampling(top_logprobs=np.array([-1, 3], np.int32), chosen=np.array([-1, 17], np.int32))
    out = executor.wait(executor.submit(INPUTS, asked))
    assert out.tokens[1] == 17
    assert out.top_ids.shape == out.top_logprobs.shape == (2, 3)
    assert np.isnan(out.logprobs).all()
    bare = executor.wait(executor.submit(INPUTS, None))
    assert bare.values is not None
    assert bare.values.shape == (2, VOCAB)
    assert len(bare.tokens) == 0


def test_tickets_are_redeemed_once_and_in_order():
    executor = NullExecutor(VOCAB)
    first, second = executor.submit(INPUTS, None), executor.submit(INPUTS, None)
    with pytest.raises(ValueError, match="ticket"):
        executor.wait(second)
    executor.wait(first)
    with pytest.raises(ValueError, match="ticket"):
        executor.wait(first)
    executor.wait(second)
