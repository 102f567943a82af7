"""Stats over engines that have followed each other: counters go on, gauges are the last one's."""

from __future__ import annotations

from msgspec.structs import replace

from corepipe.serving.messages import Stats

COUNTERS = (
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "prompt_tokens",
    "generation_tokens",
    "steps",
    "host_busy_seconds",
    "device_busy_seconds",
    "device_now_seconds",
    "late_steps",
)


def total(before: Stats, stats: Stats) -> Stats:
    """`stats` of an engine that came after others, whose counters had come to those of `before`."""
    cores = zip(before.core_busy_seconds, stats.core_busy_seconds, strict=True)
    return replace(
        stats,
        core_busy_seconds=[one + other for one, other in cores],
        **{name: getattr(before, name) + getattr(stats, name) for name in COUNTERS},
    )


def idle(stats: Stats) -> Stats:
    """When the engine is gone: its counters, and nothing held."""
    return replace(
        stats, running=0, waiting=0, waiting_tokens=0, blocks_held=0, blocks_cached=0, iteration_tokens=[]
    )
