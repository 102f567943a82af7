"""Whether the host keeps up with the device: the share of steps that were late, told once when it matters."""

from __future__ import annotations

from collections.abc import Callable

from corepipe.serving.messages import Stats

LATE_SHARE = 0.03
"""Of all steps; from here on more than the slowest hundredth of the latencies is the host's."""

FEWEST_STEPS = 50
"""Before so many nothing is said of their share: the first steps touch memory for the first time."""

HOST_IS_SLOWER = "host slower than the device: percentiles are the host's"


class Lateness:
    """Told of every Stats; says once that the host cannot keep up."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._steps: dict[int, tuple[int, int]] = {}
        self._told = False

    def take(self, stats: Stats) -> None:
        """The latest counts of a replica."""
        self._steps[stats.replica] = (stats.late_steps, stats.steps)
        late, steps = (sum(counts) for counts in zip(*self._steps.values(), strict=True))
        if not self._told and steps >= FEWEST_STEPS and late > LATE_SHARE * steps:
            self._told = True
            self._warn(f"{HOST_IS_SLOWER} ({late} of {steps} steps late; --time-scale slows the device down)")
