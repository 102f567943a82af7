"""The draft model on the host: fetched, checked against the served model, and bound to an executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corepipe.engine.assembly.device_plan import batch_tokens
from corepipe.engine.assembly.draft_plan import refused_draft
from corepipe.engine.assembly.host_plan import HostPlan
from corepipe.engine.config import EngineConfig
from corepipe.engine.drafters.draft_model import DraftModel
from corepipe.engine.drafters.speculation import ROW_COST
from corepipe.errors import UserError, shown
from corepipe.models import hub, registry
from corepipe.models.registry import Model
from corepipe.neuron.compile.compiler import bytes_read
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import PackedWeights, packed_weights
from corepipe.neuron.step import Executor, StepInputs

if TYPE_CHECKING:  # the compiled module may be missing
    from corepipe.kernels import _native

Progress = Callable[[str, float], None]

DEAREST = 0.5
"""The highest cost of a draft token, as a share of a step: a draft model as large as the served one gains
nothing, but its drafts are still computed."""


def with_draft_here(config: EngineConfig, progress: Progress) -> EngineConfig:
    """Returns the config with the local path of its draft model, which is fetched if need be; the config as
    it is, where there is no draft model to compute. Raises UserError."""
    settings, named = config.speculative_config, draft_path(config)
    if settings is None or named is None:
        return config
    try:
        path = hub.resolve(str(named), progress)
    except UserError as error:
        raise refused_draft(error.message) from error
    return config.model_copy(update={"speculative_config": settings.model_copy(update={"model": str(path)})})


def draft_path(config: EngineConfig) -> Path | None:
    """Returns the path of the draft model of a config `with_draft_here`; None where there is none to
    compute."""
    return None if config.speculative_config is None else config.speculative_config.draft_path


def load_draft(config: EngineConfig) -> Model | None:
    """Loads the draft model of a config `with_draft_here`; None where there is none to compute. Raises
    UserError."""
    path = draft_path(config)
    if path is None:
        return None
    try:
        return registry.load(path)
    except UserError as error:
        raise refused_draft(error.message) from error


def check_tokens(model: Model, draft: Model) -> None:
    """Raises UserError where a token has different texts in the two models. For a directory without a
    tokenizer only the number of tokens is known."""
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
    """Returns the cost of a draft token, as a share of a step of one row: the weights that the draft model
    reads beside those of the served model, and a row of that; None: there is no draft model."""
    if host.draft is None:
        return None
    return min(DEAREST, ROW_COST + _bytes(host.draft.graph) / _bytes(host.graph))


def _bytes(graph: Graph) -> float:
    return sum(bytes_read(graph))


def draft_weights(
    host: HostPlan, draft: Model | None, cache: Path, progress: Progress, threads: int
) -> PackedWeights | None:
    """Returns the draft model's weights, packed into `cache`; None where there is none. Raises UserError."""
    if draft is None or host.draft is None:
        return None
    draft.check(host.draft.graph)
    return packed_weights(host.draft.graph, draft.checkpoint, cache / "packed", progress, threads)


def bind_draft(
    config: EngineConfig, host: HostPlan, weights: PackedWeights, blocks: int, pool: _native.Pool
) -> DraftModel:
    """Returns the draft model for one replica with so many KV blocks, ready to compute."""
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
    """Computes a step of one token, as for the served model."""
    zero = np.zeros(1, np.int32)
    step = StepInputs(zero, zero, np.array([0, 1], np.int32), np.zeros((1, 1), np.int32), zero)
    executor.wait(executor.submit(step, None))
