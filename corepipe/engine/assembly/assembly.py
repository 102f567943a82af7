"""From an EngineConfig to a Deployment: loads, cuts, checks that it fits, packs, and binds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corepipe.engine.assembly.device_plan import (
    DevicePlan,
    batch_policy,
    batch_tokens,
    plan_device,
    scheduler_config,
)
from corepipe.engine.assembly.draft_host import (
    bind_draft,
    check_tokens,
    draft_cost,
    draft_weights,
    load_draft,
    with_draft_here,
)
from corepipe.engine.assembly.draft_plan import no_way_back
from corepipe.engine.assembly.host_limits import HostCpus, host_cpus, host_memory
from corepipe.engine.assembly.host_plan import HostPlan, faithful, of_another_kind, plan_host
from corepipe.engine.assembly.snapshots import keeps_snapshots, most_states, state_blocks, states_beside
from corepipe.engine.batch.encoding import Encoding
from corepipe.engine.channel import Counter
from corepipe.engine.config import EngineConfig
from corepipe.engine.drafters.speculation import speculation_of
from corepipe.engine.loop.adapters import AdapterParts
from corepipe.engine.loop.deployment import Deployment, ReplicaParts
from corepipe.engine.messages import Ready
from corepipe.errors import UserError
from corepipe.kernels import check_same_bits, native
from corepipe.models import hub, registry
from corepipe.models.adapters.adapter import Adapter
from corepipe.models.registry import Architecture, Model
from corepipe.models.tasks import Task, TaskInfo
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import PackedWeights, packed_weights
from corepipe.neuron.step import StepInputs
from corepipe.neuron.timing.clock import Clock, HostClock, PacedClock, VirtualClock
from corepipe.scheduler.config import SchedulerConfig

if TYPE_CHECKING:  # the compiled module may be missing
    from corepipe.kernels import _native

Progress = Callable[[str, float], None]

DEFAULT_KV_BYTES = 1 << 30
"""Host memory for KV caches, all replicas together, unless the config says otherwise (touched as used)."""

FAITHFUL_SHARE = 2
"""The KV caches may take one part in so many of the host's memory, where the device sets the pace or another
model the limits: with fewer blocks than on the device, decisions would differ from the device's."""

IDLE_CACHE_SHARE = 12
"""One block in so many is kept for the prefix cache when no request holds it: host memory is used by running
requests, and not filled with prompts that may never come again."""


def assemble(config: EngineConfig, progress: Progress, beats: Counter | None = None) -> Deployment:
    """Loads the model that `config` names; `beats` grows while batches are computed.

    Raises UserError for a model that does not exist, is broken, or does not fit.
    """
    started = time.perf_counter()
    native()  # raises where it is missing, before anything large is read
    if config.bits == "same":
        check_same_bits()
    path = hub.resolve(config.model, progress)
    model = registry.load(path)
    config = with_draft_here(config, progress)
    draft = load_draft(config)
    task = model.task(config.task)
    device = _device(config, model, task, draft)  # before the weights are read
    host = plan_host(config, model, device, task, draft)
    model.check(host.graph)
    if draft is not None:
        check_tokens(model, draft)
    blocks, beside = _host_blocks(config, host, device)
    cache = config.cache_dir or hub.cache_dir()
    cpus = HostCpus(config.threads) if config.threads else host_cpus()
    weights = packed_weights(host.graph, model.checkpoint, cache / "packed", progress, cpus.count)
    drafting = draft_weights(host, draft, cache, progress, cpus.count)
    pool = _pool(cpus.count, beats)
    replicas = _replicas(config, host, device, (blocks, beside), (weights, drafting), pool)
    encoding = None if host.graph.generates else Encoding.of(host.graph)
    _warm_up(replicas, encoding)
    ready = Ready(
        placement={
            "task": task.task.value,
            **_describe(config, host, device, blocks),
            **({"state_blocks_per_replica": beside} if beside else {}),
        },
        blocks=blocks * host.placement.data,
        block_size=replicas[0].scheduler.block_size,
        max_model_len=host.graph.max_positions,
        isa=native().isa(),
        kernels_left_out=native().left_out(),
        load_seconds=time.perf_counter() - started,
        pid=os.getpid(),
        threads=str(cpus),
        task=task.task.value,
        weights=weights.digest,
    )
    return Deployment(
        replicas,
        _clock(config),
        host.graph.vocab_size,
        config.seed,
        ready,
        tokenizer=lambda: registry.load(path).tokenizer(),  # so that the model with its weights can be freed
        encoding=encoding,
        drafter=partial(speculation_of, config.speculative_config, draft_cost(host), no_way_back(host.graph)),
        drafts=config.speculative_config is not None,
        synthetic_acceptance=_synthetic_rates(config) is not None,
        adapters=_adapters(config, path, host.graph, replicas),
    )


def _adapters(
    config: EngineConfig, path: Path, graph: Graph, replicas: Sequence[ReplicaParts]
) -> AdapterParts | None:
    """Returns what serves LoRA adapters, if the deployment is to have some.

    A slot is free again when the last request with its adapter has ended: there are two for each adapter.
    """
    if not config.lora_slots:
        return None
    from corepipe.models.adapters.peft import read_adapter  # noqa: PLC0415 -- nobody else needs it

    base = registry.load(path)

    def read(folder: Path) -> Adapter:
        return read_adapter(folder, base, graph, config.max_lora_rank)

    tables = [replica.adapters for replica in replicas if replica.adapters is not None]
    return AdapterParts(read, tables, config.lora_slots, 2 * config.lora_slots)


def _synthetic_rates(config: EngineConfig) -> tuple[float, ...] | None:
    """Returns, for each position, how often drafts are assumed to be accepted; None: that is found out."""
    return None if config.speculative_config is None else config.speculative_config.synthetic_rates


def _device(config: EngineConfig, model: Model, task: TaskInfo, draft: Model | None) -> DevicePlan:
    """Plans the emulated side, for the served model's task, or for the own task of another timed model that
    does not do it."""
    config = config.model_copy(update={"task": task.task.value})
    if config.timing_model is None:
        return plan_device(config, model, draft)
    timed = timing_model(config.timing_model)
    try:
        timed.task(config.task)
    except UserError:
        if task.task is Task.GENERATE:
            raise of_another_kind(timed.name, "decoder") from None
        config = config.model_copy(update={"task": "auto"})
    return plan_device(config, timed, draft)


def _pool(threads: int, beats: Counter | None) -> _native.Pool:
    """Starts the threads. Raises UserError where the system does not start so many."""
    try:
        pool: _native.Pool = native().Pool(threads, beats)
    except RuntimeError as error:
        raise UserError(f"threads: {error}; ask for fewer", "threads") from error
    return pool


def timing_model(source: str) -> Architecture:
    """Returns the model that is timed. Raises UserError where there is none, or it generates nothing."""
    try:
        return registry.architecture(source)
    except UserError as error:
        raise UserError(f"--timing-model: {error.message}", "timing_model") from error


def _replicas(
    config: EngineConfig,
    host: HostPlan,
    device: DevicePlan,
    room: tuple[int, int],
    weights: tuple[PackedWeights, PackedWeights | None],
    pool: _native.Pool,
) -> tuple[ReplicaParts, ...]:
    """Binds the replicas. room: KV blocks, and those of states beside them. weights: of the model, and of its
    draft model, if there is one."""
    blocks, beside = room
    rows, same = batch_tokens(config, host.graph), config.bits == "same"
    groups, (own, drafting) = host.layer_groups, weights
    states = state_blocks(config, host.graph, blocks, beside)
    are_states = states.stay and not states.beside
    scheduler = scheduler_config(
        config,
        device,
        blocks,
        host.graph.max_positions,
        states.kept if are_states else _kept_idle(config, blocks),
        groups.windows,
        states,
    )
    executors = [
        NativeExecutor(
            host.programs,
            own,
            blocks,
            scheduler.block_size,
            rows,
            pool,
            same_bits=same,
            layer_groups=groups,
            int8_cache=config.kv_cache_dtype == "int8",
            states=beside or None,
        )
        for _ in range(host.placement.data)
    ]
    chains_steps = _can_chain_steps(config, host, scheduler)
    return tuple(
        ReplicaParts(
            executor=executor,
            timeline=device.timeline(number),
            scheduler=scheduler,
            policy=batch_policy(config, device),
            max_batch_delay=config.max_batch_delay,
            together=None if drafting is None else bind_draft(config, host, drafting, blocks, pool),
            chaining=executor if chains_steps else None,
            adapters=executor.adapters,
        )
        for number, executor in enumerate(executors)
    )


def _can_chain_steps(config: EngineConfig, host: HostPlan, scheduler: SchedulerConfig) -> bool:
    """Tells whether steps may be queued before the scheduler asks for them: where the host sets the pace and
    would wait between two steps, as nothing else is computed then; and where a queued step that is dropped
    changes nothing, as it would with recurrent states, and where blocks are given back."""
    alone = host.placement.data == 1 and scheduler.most_in_flight == 1
    keeps_positions = scheduler.keeps_state and scheduler.windows == (None,) and not host.graph.is_recurrent
    return config.clock == "host" and alone and keeps_positions


def _kept_idle(config: EngineConfig, blocks: int) -> int | None:
    """Returns how many of these blocks the prefix cache keeps that no request holds; None: all."""
    return None if faithful(config) else max(1, blocks // IDLE_CACHE_SHARE)


def _warm_up(replicas: Sequence[ReplicaParts], encoding: Encoding | None) -> None:
    """Computes a step of one token, which shows that a loaded replica can compute. It also maps the weights,
    as a first step would otherwise take the time of many others."""
    zero = np.zeros(1, np.int32)
    kept = encoding is None or encoding.keeps_state
    table = np.zeros((replicas[0].scheduler.tables, int(kept)), np.int32)
    types = zero if encoding is not None and encoding.types else zero[:0]
    image = None if encoding is None else encoding.image
    patch = np.zeros((0, 0) if image is None else (1, prod(image.shape)), np.float32)
    step = StepInputs(zero, zero, np.array([0, 1], np.int32), table, zero, types, patch)
    for replica in replicas:
        replica.executor.wait(replica.executor.submit(step, None))


def default_kv_bytes(config: EngineConfig) -> int:
    """Returns the host memory for the KV caches of a deployment that has the host for itself."""
    return host_memory() // FAITHFUL_SHARE if faithful(config) else DEFAULT_KV_BYTES


def _host_blocks(config: EngineConfig, host: HostPlan, device: DevicePlan) -> tuple[int, int]:
    """Returns the KV blocks of a replica, and those of states beside them: as many as the device holds, as
    far as the host has memory for them; none, where nothing is kept in them. The configured blocks, and the
    device's, are blocks of all layers: one of each group. Where states stay in the prefix cache, the host has
    some more."""
    if not host.keeps_state:
        return 0, 0
    room = (config.kv_cache_bytes or default_kv_bytes(config)) // host.placement.data
    beside = states_beside(config, host.graph, room // 2 // max(1, host.state_bytes))
    if not faithful(config):
        room -= beside * host.state_bytes
    budget = room // host.block_bytes(config)
    sequence, groups = host.sequence_blocks(config), len(host.layer_groups.windows)
    configured = config.num_blocks and config.num_blocks * groups
    held = device.memory.num_blocks * groups
    are_states = host.graph.is_recurrent and not beside
    most = most_states(held) if are_states and keeps_snapshots(config, host.graph) else held
    count = min(configured or max(budget, sequence), most)
    if count < sequence:
        raise UserError(
            f"--num-blocks {count // groups} holds less than one sequence of --max-model-len "
            f"{host.graph.max_positions}; use at least {-(-sequence // groups)}",
            "num_blocks",
        )
    return count, beside


def _clock(config: EngineConfig) -> Clock:
    if config.clock == "virtual":
        return VirtualClock()
    return PacedClock(config.time_scale) if config.clock == "device" else HostClock()


def _describe(config: EngineConfig, host: HostPlan, device: DevicePlan, blocks: int) -> dict[str, object]:
    """Returns what /v1/placement serves and `corepipe serve` prints."""
    placement = host.placement
    return {
        "model": host.graph.name,
        "timing_model": config.timing_model and device.graph.name,
        **device.describe(),
        "kv_blocks_per_replica": blocks,
        **_kv_layer_groups(host),
        **_assumed_acceptance(config),
        **_kv_cache_dtype(config, host, device),
        "clock": config.clock,
        "time_scale": config.time_scale,
        "bits": config.bits,
        "host": {
            "model": host.graph.name,
            **placement.degrees,
        },
        "host_limits": _host_limits(host, device, blocks),
    }


def _assumed_acceptance(config: EngineConfig) -> dict[str, object]:
    """Returns the assumed acceptance of drafts, so that it is not taken for a measured one."""
    rates = _synthetic_rates(config)
    return {} if rates is None else {"assumed_acceptance_rates": list(rates)}


def _kv_layer_groups(host: HostPlan) -> dict[str, object]:
    """Returns the groups of layers, where some keep blocks for the latest positions alone."""
    groups = host.layer_groups
    if groups.windows == (None,):
        return {}
    layers = range(host.graph.num_layers)
    return {
        "kv_layer_groups": [
            {"layers": [layer for layer in layers if groups[layer] == group], "positions": window}
            for group, window in enumerate(groups.windows)
        ]
    }


def _kv_cache_dtype(config: EngineConfig, host: HostPlan, device: DevicePlan) -> dict[str, object]:
    """Returns how the host keeps keys and values where it differs from the device: Neuron's software has no
    int8 for them."""
    kept = host.keeps_state and (host.graph.is_hybrid or not host.graph.is_recurrent)
    if config.kv_cache_dtype == "auto" or not kept:
        return {}
    return {
        "kv_cache_dtype": config.kv_cache_dtype,
        "kv_cache_dtype_on_device": device.graph.format.compute.value,
        "kv_cache_bytes_per_token": host.block_bytes(config)
        * len(host.layer_groups.windows)
        // config.block_size,
    }


def _host_limits(host: HostPlan, device: DevicePlan, blocks: int) -> list[str]:
    """Returns where the host cannot follow the device, in words."""
    limits = []
    if host.graph.max_positions < device.graph.max_positions:
        limits.append(
            f"{device.graph.name} takes {device.graph.max_positions} tokens a request here; "
            f"{host.graph.name}, which the host computes, takes {host.graph.max_positions}"
        )
    whole = blocks // len(host.layer_groups.windows)
    if whole < device.memory.num_blocks:
        limits.append(
            f"the device holds {device.memory.num_blocks} KV blocks a replica, the host keeps {whole}: "
            "--kv-cache-memory-bytes"
        )
    return limits
