from __future__ import annotations

import msgspec

from corepipe.engine.messages import Stats
from corepipe.serving.supervision.stats import COUNTERS, idle, total
from tests.serving.http_support import STATS

GAUGES = {"replica", "running", "waiting", "held", "waiting_tokens"} | {
    "blocks_total", "blocks_held", "blocks_cached",
}  # fmt: skip


def test_every_field_is_a_counter_or_a_gauge() -> None:
    fields = {field.name for field in msgspec.structs.fields(Stats)}
    told = {"core_busy_seconds", "work", "iteration_tokens", "step_seconds", "paces"}
    told |= {"compile_seconds", "mask_seconds", "accepted_per_position"}
    assert fields == GAUGES | set(COUNTERS) | told


def test_counters_go_on_and_gauges_are_the_last_ones() -> None:
    new = msgspec.structs.replace(
        STATS, running=0, steps=1, core_busy_seconds=[1.0, 2.0], iteration_tokens=[5]
    )
    both = total(STATS, new)
    assert (both.running, both.blocks_held, both.iteration_tokens) == (0, new.blocks_held, [5])
    assert both.steps == STATS.steps + 1
    assert both.core_busy_seconds == [1.25, 2.25]
    (work,), (one,) = both.work, STATS.work
    assert work.engine_seconds == [2 * seconds for seconds in one.engine_seconds]
    assert (work.flops, work.memory_bytes) == (2 * one.flops, 2 * one.memory_bytes)
    assert all(getattr(both, name) == getattr(STATS, name) + getattr(new, name) for name in COUNTERS)


def test_guesses_are_added_up_by_their_places() -> None:
    before, after = (msgspec.structs.replace(STATS, accepted_per_position=n) for n in ([5, 2, 1], [3, 1]))
    assert total(before, after).accepted_per_position == [8, 3, 1]
    assert total(after, before).accepted_per_position == [8, 3, 1]
    assert total(STATS, after).accepted_per_position == [3, 1]


def test_an_engine_that_is_gone_holds_nothing() -> None:
    gone = idle(msgspec.structs.replace(STATS, compile_seconds=[0.1], mask_seconds=[1e-5]))
    assert gone.iteration_tokens == gone.step_seconds == gone.paces == []
    assert gone.compile_seconds == gone.mask_seconds == []
    assert (gone.running, gone.waiting, gone.waiting_tokens, gone.blocks_held, gone.blocks_cached) == (0,) * 5
    assert all(getattr(gone, name) == getattr(STATS, name) for name in COUNTERS)
