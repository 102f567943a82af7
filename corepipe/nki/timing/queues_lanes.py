"""The queues of engines: what is free when, and idle periods that may still be filled.  Times are
nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT_GAPS = 40
"""Idle periods of an engine that a later instruction may still fill."""

SHORTEST_GAP = 20.0
"""Nanoseconds below which an idle period is forgotten: no instruction is shorter."""


@dataclass(slots=True, eq=False)
class Lane:
    """A queue: when it is free, and where it was idle before.

    reorders: an instruction may fill an idle period before instructions that were queued earlier, as the
    legacy dialect's compiler schedules.
    """

    reorders: bool
    free: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def start(self, ready: float, length: float) -> float:
        """Returns when something of this length could start."""
        if self.reorders:
            for begin, end in self.gaps:
                at = begin if begin > ready else ready
                if at + length <= end:
                    return at
        return self.free if self.free > ready else ready

    def take(self, at: float, length: float) -> None:
        """Occupies the lane from a time that `start` returned."""
        if at >= self.free:
            if self.reorders and at - self.free > SHORTEST_GAP:
                self._idle(self.free, at)
            self.free = at + length
            return
        for i, (begin, end) in enumerate(self.gaps):
            if begin <= at < end:
                del self.gaps[i]
                for a, b in ((at + length, end), (begin, at)):
                    if b - a > SHORTEST_GAP:
                        self.gaps.insert(i, (a, b))
                return

    def fill(self, ready: float, work: float) -> tuple[float, float]:
        """Occupies idle periods, and then the end, until `work` is done; returns its start and its end."""
        first = last = -1.0
        left: list[tuple[float, float]] = []
        for begin, end in self.gaps:
            at = begin if begin > ready else ready
            if work <= 0 or at >= end:
                left.append((begin, end))
                continue
            done = min(work, end - at)
            work -= done
            first, last = (at if first < 0 else first), at + done
            left.extend((a, b) for a, b in ((begin, at), (last, end)) if b - a > SHORTEST_GAP)
        self.gaps = left
        if work > 0:
            at = self.free if self.free > ready else ready
            if at - self.free > SHORTEST_GAP:
                self._idle(self.free, at)
            first, last = (at if first < 0 else first), at + work
            self.free = last
        return first, last

    def repeat(self, busy: float, passed: float, since: float) -> float:
        """Occupies the lane for more turns of a loop, and returns by how much its end moved.

        busy, passed: the work of these turns and the time that they take; what the lane did from `since` on
        is the pattern of a turn.
        """
        before = self.free
        if busy > passed:  # idle periods take it up, as long as there are some
            self.fill(self.gaps[0][0] if self.gaps else before, busy)
            return self.free - before
        self.free += passed
        kept = [gap for gap in self.gaps if gap[1] <= since]
        moved = [(a + passed, b + passed) for a, b in self.gaps if b > since]
        idle = [(before, before + passed - busy)] if self.reorders and passed - busy > SHORTEST_GAP else []
        self.gaps = (kept + idle + moved)[-KEPT_GAPS:]
        return passed

    def _idle(self, begin: float, end: float) -> None:
        self.gaps.append((begin, end))
        if len(self.gaps) > KEPT_GAPS:
            del self.gaps[0]
