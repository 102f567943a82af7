"""The check that the host keeps up with the device, and the time scale at which it would.

At the device's pace a step that the host ends too late is late for the client.  Past a small share of late
steps the times that clients see are the host's, and they no longer send the requests that they would send to
the device at these times: emulated figures are not valid then.
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
"""The share of late steps beyond which more than the slowest hundredth of the latencies is the host's."""

FEWEST_STEPS = 50
"""The fewest steps whose share of late ones is judged, since the first steps touch memory for the first time;
the share is judged again after as many more."""

WINDOW_STEPS = 1000
"""The number of last steps, over all replicas, that are judged: a short delay of the host is forgotten."""

HEADROOM = 1.1
"""The advised time scale over the smallest that would have been enough."""

MOST_TIME_SCALE = 1e9

HOST_IS_SLOWER = "host slower than the device: percentiles are the host's"


def too_late(late: int, steps: int) -> bool:
    """Tells whether `late` of `steps` are too many."""
    return late > LATE_SHARE * steps


def not_valid(late: int, steps: int, needed: float | None) -> str:
    """Writes the warning for readers of emulated figures.  needed: the time scale to use, if it is known."""
    advice = "--time-scale slows the device down" if needed is None else f"--time-scale {needed:g} would do"
    return f"{HOST_IS_SLOWER}, and emulated figures are not valid ({late} of {steps} steps late; {advice})"


@dataclass(frozen=True)
class LatenessVerdict:
    """A judgement of the replicas' last steps at a time scale: host seconds for one second of the device."""

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
        """Tells whether emulated figures are what they would be on a host that is fast enough."""
        return self.steps < FEWEST_STEPS or not too_late(self.late, self.steps)

    @cached_property
    def time_scale_needed(self) -> float:
        """The time scale that would be enough, with two digits; the current one where figures are valid."""
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
    """Counts the steps that would be late at another time scale: the host does the same work in more time.

    The host loses the same time in each step again; it makes up for it while the device is idle, and in each
    step by the time that the device now takes longer.
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
    """Takes every Stats; calls `warn` once, when the host cannot keep up."""

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale
        self._windows: dict[int, deque[StepPace]] = {}
        self._unjudged = 0
        self._told = False
        self.verdict = LatenessVerdict(time_scale, ())
        self.warn: Callable[[str], None] = _nobody

    def take(self, stats: Stats) -> None:
        """Takes the latest steps of a replica."""
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
    """Rounds up to two digits."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return float(f"{ceil(value / unit) * unit:.2g}")


def _nobody(_line: str) -> None:
    """Ignores a warning."""
