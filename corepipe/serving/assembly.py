"""From an EngineConfig to a Deployment: loads, cuts, checks that it fits, packs, and binds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from corepipe.errors import UserError
from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron import modes
from corepipe.neuron.catalog import instance as find_instance
from corepipe.neuron.clock import Clock, HostClock, PacedClock, VirtualClock
from corepipe.neuron.compiler import describe
from corepipe.neuron.cost import CostModel
from corepipe.neuron.executor import NativeExecutor
from corepipe.neuron.graph import FORMATS, Graph
from corepipe.neuron.hardware import Instance
from corepipe.neuron.memory import Limits, MemoryPlan, plan_memory
from corepipe.neuron.placement import Placement
from corepipe.neuron.program import Program
from corepipe.neuron.timeline import Timeline
from corepipe.neuron.weights import packed_weights
from corepipe.scheduler.policy import policy
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.serving.config import EngineConfig
from corepipe.serving.deployment import Deployment, Replica
from corepipe.serving.messages import Ready

Progress = Callable[[str, float], None]

DEFAULT_MODEL_LEN = 8192
"""Longest sequence of a model that takes more, unless the config says otherwise."""

DEFAULT_KV_BYTES = 1 << 30
"""Host memory for KV caches, all replicas together, unless the config says otherwise (touched as used)."""

IDLE_CACHE_SHARE = 12
"""One block in so many is kept for the prefix cache when no request holds it: host memory is touched by what
runs, and not filled with prompts that may never come again."""


def assemble(config: EngineConfig, progress: Progress) -> Deployment:
    """Loads what `config` names.  Raises UserError for what does not exist, is broken, or does not fit."""
    started = time.perf_counter()
    native()  # says what is missing before anything large is read
    instance = find_instance(config.instance)
    model = registry.load(hub.resolve(config.model, progress))
    positions = config.max_model_len or min(model.config.max_positions, DEFAULT_MODEL_LEN)
    graph = model.graph(FORMATS[config.format], positions)
    limits = _limits(config, graph)
    degrees = modes.Degrees(config.pipeline, config.tensor, config.data)
    placement, reason = modes.resolve(config.mode, graph, instance, limits, degrees)
    cut = modes.compiler(graph, instance)
    programs = cut(placement)
    memory = plan_memory(programs, placement, instance, limits, cut)  # before the weights are asked for
    model.check(graph)
    blocks = _host_blocks(config, placement, memory, limits)
    cache = config.cache_dir or hub.cache_dir()
    weights = packed_weights(graph, model.checkpoint, cache / "packed", progress)
    pool = native().Pool(config.threads or len(os.sched_getaffinity(0)))
    rows = config.max_num_batched_tokens
    replicas = tuple(
        Replica(
            executor=NativeExecutor(programs, weights, blocks, config.block_size, rows, pool),
            timeline=Timeline(CostModel(programs, instance, placement.data, number)),
            scheduler=_scheduler_config(config, graph, blocks, placement),
            policy=policy(config.policy),
        )
        for number in range(placement.data)
    )
    ready = Ready(
        placement=_describe(graph, programs, placement, instance, reason, blocks),
        blocks=blocks * placement.data,
        block_size=config.block_size,
        max_model_len=graph.max_positions,
        isa=native().isa(),
        load_seconds=time.perf_counter() - started,
    )
    paced = config.clock != "host"
    return Deployment(replicas, _clock(config), paced, graph.vocab_size, config.seed, ready)


def _limits(config: EngineConfig, graph: Graph) -> Limits:
    sequence = -(-graph.max_positions // config.block_size)
    most = config.num_blocks or config.max_num_seqs * sequence
    return Limits(
        graph.max_positions, config.max_num_seqs, config.max_num_batched_tokens, config.block_size, most
    )


def _host_blocks(config: EngineConfig, placement: Placement, memory: MemoryPlan, limits: Limits) -> int:
    """KV blocks of a replica: what the device holds, as far as the host spends memory on it."""
    budget = (config.kv_cache_bytes or DEFAULT_KV_BYTES) // (memory.block_bytes * placement.data)
    wanted = config.num_blocks or max(budget, limits.blocks_per_sequence)
    wanted = min(wanted, memory.num_blocks)
    if wanted < limits.blocks_per_sequence:
        raise UserError(
            f"--num-blocks {wanted} holds less than one sequence of --max-model-len {limits.max_model_len}; "
            f"use at least {limits.blocks_per_sequence}",
            "num_blocks",
        )
    return wanted


def _scheduler_config(
    config: EngineConfig, graph: Graph, blocks: int, placement: Placement
) -> SchedulerConfig:
    return SchedulerConfig(
        num_blocks=blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=graph.max_positions,
        prefix_cache=config.prefix_cache,
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        micro_batches=_micro_batches(config, placement),
        max_cached_blocks=max(1, blocks // IDLE_CACHE_SHARE),
    )


def _micro_batches(config: EngineConfig, placement: Placement) -> int:
    """Batches in flight: two a stage keep emulated cores full while one is handed over; the host, which
    computes the stages one after the other, does better with fewer and larger batches."""
    if placement.pipeline == 1 or config.clock == "host":
        return placement.pipeline
    return 2 * placement.pipeline


def _clock(config: EngineConfig) -> Clock:
    if config.clock == "virtual":
        return VirtualClock()
    return PacedClock() if config.clock == "device" else HostClock()


def _describe(
    graph: Graph,
    programs: Sequence[Program],
    placement: Placement,
    instance: Instance,
    reason: str,
    blocks: int,
) -> dict[str, object]:
    """What /v1/placement serves and `corepipe serve` prints."""
    return {
        "emulated": True,
        "model": graph.name,
        "format": graph.format.name,
        "format_on_device": instance.support(graph.format).value,
        "instance": instance.name,
        "pipeline": placement.pipeline,
        "tensor": placement.tensor,
        "data": placement.data,
        "reason": reason,
        "kv_blocks_per_replica": blocks,
        **describe(programs),
    }
