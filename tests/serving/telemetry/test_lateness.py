"""The line that says that the host cannot keep up: once, and only when it matters."""

from __future__ import annotations

from msgspec.structs import replace

from corepipe.serving.telemetry.lateness import FEWEST_STEPS, HOST_IS_SLOWER, Lateness
from tests.serving.http_support import STATS


def told(*counts: tuple[int, int, int]) -> list[str]:
    """The lines after Stats of (replica, late, steps)."""
    lines: list[str] = []
    lateness = Lateness(lines.append)
    for replica, late, steps in counts:
        lateness.take(replace(STATS, replica=replica, late_steps=late, steps=steps))
    return lines


def test_a_few_late_steps_are_nothing_to_tell() -> None:
    assert told((0, 3, 100), (0, 6, 200)) == []


def test_more_are_told_once() -> None:
    (line,) = told((0, 0, 100), (0, 20, 200), (0, 40, 300))
    assert line.startswith(HOST_IS_SLOWER)
    assert "20 of 200" in line
    assert "--time-scale" in line


def test_the_first_steps_say_nothing() -> None:
    assert told((0, FEWEST_STEPS - 1, FEWEST_STEPS - 1)) == []


def test_replicas_count_together() -> None:
    assert told((0, 0, 1000), (1, 20, 200)) == []
    (line,) = told((0, 0, 100), (1, 20, 200))
    assert "20 of 300" in line
