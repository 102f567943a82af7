"""Several models in one server: the part of the device and of the host that each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corepipe.cli.start.starting import ResolvedModel
from corepipe.engine.assembly.assembly import default_kv_bytes, timing_model
from corepipe.engine.assembly.device_plan import graph_of
from corepipe.engine.assembly.draft_host import load_draft
from corepipe.engine.assembly.draft_plan import draft_graph
from corepipe.engine.assembly.host_limits import host_cpus, host_memory
from corepipe.engine.assembly.sharing import Tenancy, check_weights, shared
from corepipe.engine.config import EngineConfig
from corepipe.models import registry
from corepipe.neuron.host.packed_index import weights_size


def with_shares(found: Sequence[ResolvedModel]) -> list[ResolvedModel]:
    """Gives each model its part.  Raises UserError where they do not fit."""
    models = [Tenancy(one.name, one.resolved, _timed(one)) for one in found]
    configs = shared(models, host_cpus().count, default_kv_bytes(found[0].resolved))
    check_weights({one.name: weights_size_of(one.path, one.resolved) for one in found}, host_memory())
    return [_with_share(one, config) for one, config in zip(found, configs, strict=True)]


def _with_share(one: ResolvedModel, resolved: EngineConfig) -> ResolvedModel:
    """Returns the model as its engine runs it; the configuration that is shown has its cores, too."""
    cores = {"first_core": resolved.first_core, "cores": resolved.cores}
    return replace(one, engine=one.engine.model_copy(update=cores), resolved=resolved)


def weights_size_of(path: Path, resolved: EngineConfig) -> int:
    """Returns the bytes of host memory that a model's weights take.  Raises UserError for a broken model."""
    model, config = registry.load(path), resolved.model_copy(update={"max_model_len": None})
    graph = graph_of(config, model, model.task(config.task))
    draft = load_draft(config)
    beside = 0 if draft is None else weights_size(draft_graph(draft, graph))
    return weights_size(graph) + beside


def _timed(one: ResolvedModel) -> registry.Architecture:
    timed = one.resolved.timing_model
    return registry.load(one.path) if timed is None else timing_model(timed)
