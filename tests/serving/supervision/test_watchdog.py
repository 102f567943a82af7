from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.serving.pulse import Pulse, make_pulse
from corepipe.serving.supervision.watchdog import BUSY_SECONDS, STILL_SECONDS, TICK_SECONDS, Watchdog, at_work
from tests.servers import until


class Heart:
    """Beats when told to, and works or does not."""

    def __init__(self, busy: bool) -> None:
        self.beats = 0
        self.asked = 0
        self.busy = busy

    def dog(self) -> Watchdog:
        return Watchdog(lambda: self.beats, self._at_work)

    def _at_work(self) -> bool:
        self.asked += 1
        return self.busy


@pytest.mark.parametrize(("busy", "limit"), [(False, STILL_SECONDS), (True, BUSY_SECONDS)])
def test_silence_has_a_limit(busy: bool, limit: float) -> None:
    dog = Heart(busy).dog()
    looks = next(look for look in range(1, 1000) if dog.hangs(TICK_SECONDS))
    assert looks == pytest.approx(limit / TICK_SECONDS, abs=1)


def test_threads_are_looked_at_only_when_there_is_a_suspicion() -> None:
    heart = Heart(busy=False)
    dog = heart.dog()
    assert not any(dog.hangs(TICK_SECONDS) for _ in range(round(STILL_SECONDS / TICK_SECONDS) - 1))
    assert heart.asked == 0


@given(st.lists(st.integers(0, 8), min_size=1, max_size=100))
def test_who_beats_often_enough_never_hangs(silences: list[int]) -> None:
    heart = Heart(busy=False)
    dog = heart.dog()
    for silence in silences:
        assert not any(dog.hangs(TICK_SECONDS) for _ in range(silence))
        heart.beats += 1


def test_a_server_that_stood_still_itself_does_not_take_the_engine_for_hung() -> None:
    dog = Heart(busy=False).dog()
    assert not dog.hangs(3600.0)
    assert not dog.hangs(3600.0)


def test_a_pulse_is_seen_by_another_process() -> None:
    fd = make_pulse()
    try:
        pulse = Pulse(fd)
        assert pulse.read() == 0
        code = (
            "import sys; from corepipe.serving.pulse import Pulse; pulse = Pulse(int(sys.argv[1]));"
            "pulse.beat(); pulse.beat(); pulse.native[0] += 5"
        )
        subprocess.run([sys.executable, "-c", code, str(fd)], pass_fds=[fd], check=True)
        assert pulse.read() == 7
    finally:
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_at_work_or_not() -> None:
    code = "import time\nprint(flush=True)\ntime.sleep(0.2)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert until(lambda: at_work(process.pid))
            process.send_signal(signal.SIGSTOP)
            assert until(lambda: not at_work(process.pid))
        finally:
            process.kill()
    assert not at_work(process.pid)
