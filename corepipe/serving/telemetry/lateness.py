"""Whether the host keeps up with the device, and if not, how much slower the device would have to be.

At the device's pace a step that the host ends too late is late for the client.  Past a small share of such
steps what clients see is the host's, and what they send, and when, is no longer what they would send to the
device: emulated figures are not valid then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log10

from corepipe.engine.messages import Stats, StepPace
from corepipe.neuron.timing.clock import LATE_SECONDS

LATE_SHARE = 0.03
"""Of all steps; from here on more than the slowest hundredth of the latencies is the host's."""

FEWEST_STEPS = 50
"""Before so many nothing is said of their share: the first steps touch memory for the first time.  Then they
are judged anew after as many more."""

WINDOW_STEPS = 1000
"""The last steps, over all replicas, which are judged: a host that was slow for a moment is forgiven."""

HEADROOM = 1.1
"""What is advised is more than what would just have done."""

MOST_TIME_SCALE = 1e9

HOST_IS_SLOWER = "host slower than the device: percentiles are the host's"


def too_late(late: int, steps: int) -> bool:
    """Whether so many late steps are too many."""
    return late > LATE_SHARE * steps


def not_valid(late: int, steps: int, needed: float | None) -> str:
    """What a reader of emulated figures is told; needed: the time scale that would do, if it is known."""
    advice = "--time-scale slows the device down" if needed is None else f"--time-scale {needed:g} would do"
    return f"{HOST_IS_SLOWER}, and emulated figures are not valid ({late} of {steps} steps late; {advice})"


@dataclass(frozen=True)
class LatenessVerdict:
    """Of the last steps of the replicas, at a time scale: host seconds for one of the device."""

    time_scale: float
    replicas: Sequence[Sequence[StepPace]]

    @property
    def steps(self) -> int:
        return sum(map(len, self.replicas))

    @cached_property
    def late(self) -> int:
        return sum(pace.behind_seconds > LATE_SECONDS for paces in self.replicas for pace in paces)

    @property
    def valid(self) -> bool:
        """Whether emulated figures are what they would be on a host that is fast enough."""
        return self.steps < FEWEST_STEPS or not too_late(self.late, self.steps)

    @cached_property
    def time_scale_needed(self) -> float:
        """The time scale that would do, with two digits; that at hand where figures are valid."""
        if self.valid:
            return self.time_scale
        low, high = self.time_scale, 2 * self.time_scale
        while high < MOST_TIME_SCALE and not self._would_do(high):
            low, high = high, 2 * high
        while high > 1.01 * low:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self._would_do(middle) else (middle, high)
        return _rounded_up(HEADROOM * high)

    def _would_do(self, time_scale: float) -> bool:
        late = sum(late_at(time_scale, paces, self.time_scale) for paces in self.replicas)
        return not too_late(late, self.steps)


def late_at(time_scale: float, paces: Iterable[StepPace], measured_at: float) -> int:
    """How many of these steps would be late at another time scale: the same work of the host, and more time.

    What the host lost in a step it loses again; it makes up for that while the device has nothing to do, and
    in each step by as much as the device now takes longer.
    """
    late, was, would_be = 0, 0.0, 0.0
    for pace in paces:
        lost = pace.behind_seconds - max(0.0, was - measured_at * pace.idle_seconds)
        won = (time_scale - measured_at) * pace.device_seconds
        would_be = max(0.0, max(0.0, would_be - time_scale * pace.idle_seconds) + lost - won)
        was = pace.behind_seconds
        late += would_be > LATE_SECONDS
    return late


class Lateness:
    """Told of every Stats; `warn` is told once, when the host cannot keep up."""

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale
        self._windows: dict[int, deque[StepPace]] = {}
        self._unjudged = 0
        self._told = False
        self.verdict = LatenessVerdict(time_scale, ())
        self.warn: Callable[[str], None] = _nobody

    def take(self, stats: Stats) -> None:
        """The latest steps of a replica."""
        self._windows.setdefault(stats.replica, deque(maxlen=WINDOW_STEPS)).extend(stats.paces)
        self._unjudged += len(stats.paces)
        if self._unjudged >= FEWEST_STEPS:
            self._judge()

    def _judge(self) -> None:
        self._unjudged = 0
        most = max(1, WINDOW_STEPS // len(self._windows))
        verdict = LatenessVerdict(
            self._time_scale, [tuple(window)[-most:] for window in self._windows.values()]
        )
        self.verdict = verdict
        if not self._told and not verdict.valid:
            self._told = True
            self.warn(not_valid(verdict.late, verdict.steps, verdict.time_scale_needed))


def _rounded_up(value: float) -> float:
    """To two digits."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return float(f"{ceil(value / unit) * unit:.2g}")


def _nobody(_line: str) -> None:
    """Where nobody is to be warned."""
