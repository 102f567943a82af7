"""The draft model on the host: fetched, checked against the model that it guesses for, and bound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corepipe.engine.assembly.device_plan import batch_tokens
from corepipe.engine.assembly.draft_plan import refused_draft
from corepipe.engine.assembly.host_plan import HostPlan
from corepipe.engine.config import EngineConfig
from corepipe.engine.drafters.depth import ROW_COST
from corepipe.engine.drafters.draft_model import DraftModel
from corepipe.errors import UserError, shown
from corepipe.models import hub, registry
from corepipe.models.registry import Model
from corepipe.neuron.compile.compiler import bytes_read
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import PackedWeights, packed_weights
from corepipe.neuron.inputs import Executor, StepInputs

if TYPE_CHECKING:  # the compiled module may be missing
    from corepipe.kernels import _native

Progress = Callable[[str, float], None]

DEAREST = 0.5
"""What a guess costs at most, of a step: who asks for a draft model as large as the one that it guesses for
gains nothing by it, and sees it guess."""


def with_draft_here(config: EngineConfig, progress: Progress) -> EngineConfig:
    """The config with the path of the draft model that it names, which is fetched if need be; as it is, where
    nobody computes one.  Raises UserError."""
    asked, named = config.speculative_config, draft_path(config)
    if asked is None or named is None:
        return config
    try:
        path = hub.resolve(str(named), progress)
    except UserError as error:
        raise refused_draft(error.message) from error
    return config.model_copy(update={"speculative_config": asked.model_copy(update={"model": str(path)})})


def draft_path(config: EngineConfig) -> Path | None:
    """Of the draft model of a config `with_draft_here`; None where nobody computes one."""
    return None if config.speculative_config is None else config.speculative_config.draft_path


def load_draft(config: EngineConfig) -> Model | None:
    """The draft model of a config `with_draft_here`; None where nobody computes one.  Raises UserError."""
    path = draft_path(config)
    if path is None:
        return None
    try:
        return registry.load(path)
    except UserError as error:
        raise refused_draft(error.message) from error


def check_tokens(model: Model, draft: Model) -> None:
    """Raises UserError where a token of one is another one's text.  Of a directory without a tokenizer the
    number of tokens is all that is known."""
    try:
        words, others = (each.tokenizer().backend.get_vocab() for each in (model, draft))
    except UserError:
        return
    if words == others:
        return
    differ = min((number, text) for text, number in words.items() if others.get(text) != number)
    raise refused_draft(
        f"{draft.name} has other tokens than {model.name}: {shown(repr(differ[1]), 40)} is "
        f"{others.get(differ[1], 'none')} and not {differ[0]}"
    )


def draft_cost(host: HostPlan) -> float | None:
    """What a guess of the draft model costs, of a step of one: what it reads of weights beside the model that
    it guesses for, and a row of that; None: there is none."""
    if host.draft is None:
        return None
    return min(DEAREST, ROW_COST + _bytes(host.draft.graph) / _bytes(host.graph))


def _bytes(graph: Graph) -> float:
    return sum(bytes_read(graph))


def draft_weights(
    host: HostPlan, draft: Model | None, cache: Path, progress: Progress, threads: int
) -> PackedWeights | None:
    """The draft model's weights, packed into `cache`; None where there is none.  Raises UserError."""
    if draft is None or host.draft is None:
        return None
    draft.check(host.draft.graph)
    return packed_weights(host.draft.graph, draft.checkpoint, cache / "packed", progress, threads)


def bind_draft(
    config: EngineConfig, host: HostPlan, weights: PackedWeights, blocks: int, pool: _native.Pool
) -> DraftModel:
    """Who guesses for one replica with so many KV blocks; it can compute."""
    assert host.draft is not None
    rows = batch_tokens(config, host.graph)
    executor = NativeExecutor(
        host.draft.programs,
        weights,
        blocks,
        config.block_size,
        rows,
        pool,
        same_bits=config.bits == "same",
        int8_cache=config.kv_cache_dtype == "int8",
    )
    _warm_up(executor)
    return DraftModel(executor, config.block_size, rows)


def _warm_up(executor: Executor) -> None:
    """A step of one token, as of the model that it guesses for."""
    zero = np.zeros(1, np.int32)
    step = StepInputs(zero, zero, np.array([0, 1], np.int32), np.zeros((1, 1), np.int32), zero)
    executor.wait(executor.submit(step, None))
