"""Collectives and transfers between the cores of a replica, in numpy.

`Links` carries one batch: cores run one after the other until they must wait, which None tells them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from corepipe.neuron.formats import DType
from corepipe.neuron.numerics.arithmetic import round_to

F32 = npt.NDArray[np.float32]


def all_reduce(parts: Sequence[F32], compute: DType) -> F32:
    """Returns the sum of equal shapes, added in order in fp32, rounded once."""
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        total = total + part
    return round_to(total, compute)


def all_gather(parts: Sequence[F32], widths: Sequence[int]) -> F32:
    """Returns [M, sum(widths)]: the first widths[i] columns of each part, in order."""
    return np.concatenate([part[:, :width] for part, width in zip(parts, widths, strict=True)], axis=1)


class Links:
    """Values in transit between the cores of one replica during one batch."""

    def __init__(self) -> None:
        self._channels: defaultdict[tuple[int, int], deque[F32]] = defaultdict(deque)
        self._exchanges: defaultdict[tuple[range, int], dict[int, F32]] = defaultdict(dict)

    def send(self, source: int, target: int, x: F32) -> None:
        """Queues x on the way from core `source` to core `target`."""
        self._channels[source, target].append(x)

    def receive(self, source: int, target: int) -> F32 | None:
        """Returns the oldest value on the way from `source` to `target`, or None if there is none yet."""
        channel = self._channels[source, target]
        return channel.popleft() if channel else None

    def exchange(self, group: range, number: int, core: int, x: F32) -> list[F32] | None:
        """Adds a core's part to the collective `number` of its group; returns all parts in rank order, once
        complete.

        A core that got None calls again with the same part.
        """
        parts = self._exchanges[group, number]
        parts[core] = x
        return [parts[c] for c in group] if len(parts) == len(group) else None
