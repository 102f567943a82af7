"""Stats over engines that replaced each other: counters continue, gauges are those of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec.structs import replace

from corepipe.engine.messages import StageWork, Stats

COUNTERS = (
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "steps",
    "host_busy_seconds",
    "device_busy_seconds",
    "device_now_seconds",
    "late_steps",
    "overflows",
    "constraint_failures",
    "padded_tokens",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
)


def total(before: Stats, stats: Stats) -> Stats:
    """Adds the counters of earlier engines, `before`, to the `stats` of the current one."""
    return replace(
        stats,
        core_busy_seconds=_sums(before.core_busy_seconds, stats.core_busy_seconds),
        accepted_per_position=[
            a + b
            for a, b in zip_longest(before.accepted_per_position, stats.accepted_per_position, fillvalue=0)
        ],
        work=[_both(*pair) for pair in zip(before.work, stats.work, strict=True)],
        **{name: getattr(before, name) + getattr(stats, name) for name in COUNTERS},
    )


def idle(stats: Stats) -> Stats:
    """Returns the stats of an engine that is gone: its counters, and no requests or blocks."""
    return replace(
        stats,
        running=0,
        waiting=0,
        held=0,
        waiting_tokens=0,
        blocks_held=0,
        blocks_cached=0,
        iteration_tokens=[],
        step_seconds=[],
        paces=[],
        compile_seconds=[],
        mask_seconds=[],
    )


def _both(one: StageWork, other: StageWork) -> StageWork:
    return StageWork(
        _sums(one.engine_seconds, other.engine_seconds),
        one.flops + other.flops,
        one.memory_bytes + other.memory_bytes,
    )


def _sums(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]
