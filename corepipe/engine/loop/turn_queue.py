"""The replica whose turn comes first, found without asking each of them."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf


class TurnQueue:
    """A moment for each number from 0 to `size` - 1, infinity at first; the earliest is found at once.

    A heap of all moments that were ever set and may still be valid: an invalid one is dropped when it reaches
    the top.
    """

    def __init__(self, size: int) -> None:
        self._moments = [inf] * size
        self._heap: list[tuple[float, int]] = []

    def put(self, number: int, moment: float) -> None:
        """Sets the moment of a number; infinity: it has none."""
        if moment != self._moments[number]:
            self._moments[number] = moment
            if moment < inf:
                heappush(self._heap, (moment, number))

    @property
    def first(self) -> tuple[float, int]:
        """The earliest moment and the first number that has it; infinity and 0 where none has one."""
        heap, moments = self._heap, self._moments
        while heap and moments[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else (inf, 0)
