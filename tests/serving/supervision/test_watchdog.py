from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.engine.channel import Heartbeat, make_heartbeat
from corepipe.serving.supervision.child import (
    SERVING,
    SUSPICIOUS_SECONDS,
    TICK_SECONDS,
    HangLimits,
    ThreadStates,
    Watchdog,
    look_at,
)
from tests.servers import until

PATIENCE = HangLimits(still=2.0, busy=6.0)


class Engine:
    """An engine that beats on request; its threads have a state and some processor time."""

    def __init__(self, *, running: bool = False, waiting: bool = False, share: float = 0.0) -> None:
        self.beats = 0
        self.asked = 0
        self.seconds = 0.0
        self.running, self.waiting, self.share = running, waiting, share

    def dog(self, limits: HangLimits = PATIENCE) -> Watchdog:
        return Watchdog(lambda: self.beats, self._look, limits)

    def _look(self) -> ThreadStates:
        self.asked += 1
        self.seconds += self.share * TICK_SECONDS
        return ThreadStates(self.running, self.waiting, {1: self.seconds, 2: 0.0})


def seconds_until_it_hangs(engine: Engine, most: float = 10_000.0) -> float | None:
    dog = engine.dog()
    looks = (look for look in range(1, round(most / TICK_SECONDS)) if dog.hangs(TICK_SECONDS))
    found = next(looks, None)
    return None if found is None else found * TICK_SECONDS


@pytest.mark.parametrize(
    ("engine", "limit"),
    [
        (Engine(), PATIENCE.still),
        (Engine(waiting=True), PATIENCE.busy),
        (Engine(running=True, share=1.0), PATIENCE.busy + SUSPICIOUS_SECONDS),
        (Engine(running=True, waiting=True, share=0.1), 10 * PATIENCE.busy + SUSPICIOUS_SECONDS),
        (Engine(waiting=True, share=0.1), 10 * PATIENCE.busy + SUSPICIOUS_SECONDS),
    ],
    ids=["asleep", "a dead disk", "an endless loop", "one on a busy machine", "a disk that gives"],
)
def test_silence_has_a_limit(engine: Engine, limit: float) -> None:
    assert seconds_until_it_hangs(engine) == pytest.approx(limit, abs=3 * TICK_SECONDS)


def test_who_waits_for_a_processor_does_not_hang() -> None:
    assert seconds_until_it_hangs(Engine(running=True)) is None


def test_threads_are_looked_at_only_when_there_is_a_suspicion() -> None:
    engine = Engine()
    dog = engine.dog()
    assert not any(dog.hangs(TICK_SECONDS) for _ in range(round(SUSPICIOUS_SECONDS / TICK_SECONDS) - 1))
    assert engine.asked == 0


@given(st.lists(st.integers(0, round(SERVING.still / TICK_SECONDS) - 2), min_size=1, max_size=100))
def test_who_beats_often_enough_never_hangs(silences: list[int]) -> None:
    engine = Engine()
    dog = engine.dog(SERVING)
    for silence in silences:
        assert not any(dog.hangs(TICK_SECONDS) for _ in range(silence))
        engine.beats += 1


def test_a_server_that_stood_still_itself_does_not_take_the_engine_for_hung() -> None:
    dog = Engine().dog(SERVING)
    assert not dog.hangs(3600.0)
    assert not dog.hangs(3600.0)


def test_the_thread_that_did_most_counts_and_new_ones_have_done_nothing() -> None:
    before = ThreadStates(running=True, waiting=False, seconds={1: 5.0, 2: 1.0})
    now = ThreadStates(running=True, waiting=False, seconds={2: 1.5, 3: 9.0})
    assert now.since(before) == 0.5
    assert ThreadStates(running=False, waiting=False, seconds={}).since(before) == 0.0


def test_a_heartbeat_is_seen_by_another_process() -> None:
    fd = make_heartbeat()
    try:
        heartbeat = Heartbeat(fd)
        assert heartbeat.read() == 0
        code = (
            "import sys; from corepipe.engine.channel import Heartbeat; beat = Heartbeat(int(sys.argv[1]));"
            "beat.beat(); beat.beat(); beat.native[0] += 5"
        )
        subprocess.run([sys.executable, "-c", code, str(fd)], pass_fds=[fd], check=True)
        assert heartbeat.read() == 7
    finally:
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_seen_to_run_and_to_stand_still() -> None:
    code = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            before = look_at(process.pid)
            assert before.running
            assert until(lambda: look_at(process.pid).since(before) >= 0.05)
            process.send_signal(signal.SIGSTOP)
            assert until(lambda: not look_at(process.pid).running)
            assert not look_at(process.pid).waiting
        finally:
            process.kill()
    gone = look_at(process.pid)
    assert not gone.running
    assert not gone.seconds
