"""Results of instructions before the kernel places them, and masks.

An instruction of the legacy dialect returns its result.  It is recorded when the kernel says where the
result belongs, so that it writes there and nothing is copied; or, at the next thing that is recorded, into a
tile of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.nki.core.affine import box_of
from corepipe.nki.core.buffers import Space
from corepipe.nki.core.errors import Site
from corepipe.nki.core.recorder import Recorder, current
from corepipe.nki.core.tensors import View, whole

Run = Callable[[View], object]
"""Records an instruction with its destination."""


class Mask:
    """The part of a tile that an instruction computes."""

    __slots__ = ("box", "exact")

    def __init__(self, box: tuple[slice, ...], exact: npt.NDArray[np.bool_] | None) -> None:
        self.box, self.exact = box, exact

    @classmethod
    def of(cls, mask: Any, shape: tuple[int, ...]) -> Mask | None:
        """Reads the argument `mask` of an instruction on a tile of `shape`; None for all of it."""
        if mask is None or mask is True:
            return None
        array = np.asarray(mask, np.bool_)
        if not any(array.strides) and array.size:
            array = array.reshape(-1)[:1]  # one value for all
        if array.all():
            return None
        if not array.any():
            return cls((slice(0, 0),) * len(shape), None)
        array = _with_rank(array, len(shape))
        if array.ndim != len(shape) or any(m not in {1, n} for m, n in zip(array.shape, shape, strict=True)):
            raise current().refuse("mask", f"a mask of shape {array.shape} does not fit a tile of {shape}")
        box = box_of(array)
        if box is None:
            return cls((slice(None),) * len(shape), np.broadcast_to(array, shape))
        return cls(tuple(slice(None) if m == 1 else s for m, s in zip(array.shape, box, strict=True)), None)

    def crop(self, view: View) -> View:
        """Returns the part of an operand, of which axes of length 1 are repeated."""
        if self.exact is not None:
            return view
        return view[tuple(slice(None) if n == 1 else s for n, s in zip(view.shape, self.box, strict=True))]

    def part(self, view: View) -> View:
        """Returns the part of a destination."""
        return view if self.exact is not None else view[self.box]

    def apply(self, run: Run, target: View) -> None:
        """Records an instruction that leaves what the mask excludes of its destination as it is."""
        if self.exact is None:
            run(target[self.box])
            return
        if not current().values:
            run(target)
            return
        array, flags = target.array(), target.written()
        before, were = array.copy(), None if flags is None else flags.copy()
        run(target)
        array[~self.exact] = before[~self.exact]
        if flags is not None and were is not None:
            flags[~self.exact] = were[~self.exact]


def _with_rank(array: npt.NDArray[np.bool_], rank: int) -> npt.NDArray[np.bool_]:
    """Returns a mask with axes of length 1 added or removed at its end."""
    while array.ndim < rank:
        array = array[..., None]
    while array.ndim > rank and 1 in array.shape[1:]:
        array = array.squeeze(axis=array.ndim - 1 - array.shape[:0:-1].index(1))
    return array


class Pending:
    """A result that has no place yet."""

    __slots__ = ("accumulate", "dtype", "mask", "recorder", "run", "shape", "site", "space", "view")

    def __init__(
        self,
        recorder: Recorder,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        space: Space,
        run: Run,
        mask: Mask | None,
        accumulate: Run | None,
    ) -> None:
        self.recorder, self.shape, self.dtype, self.space = recorder, shape, dtype, space
        self.run, self.mask, self.accumulate = run, mask, accumulate
        self.site: Site = recorder.site()
        self.view: View | None = None

    def __call__(self) -> View:
        """Records the instruction with a tile of its own as its destination, and returns that."""
        if self.view is None:
            if self.recorder.pending is self:
                self.recorder.pending = None
            self.recorder.flush()
            self.view = fresh(self.shape, self.dtype, self.space, filled=self.mask is not None)
            self._record(self.run, self.view)
        return self.view

    @property
    def waits(self) -> bool:
        """Tells whether the instruction can still be given a destination."""
        return self.recorder.pending is self

    def place(self, target: View) -> None:
        """Records the instruction with a destination of the kernel's."""
        self.recorder.pending = None
        self.view = target.fitted(self.shape)
        self._record(self.run, self.view)

    def add_to(self, target: View) -> None:
        """Records the instruction so that it adds to its destination.  The result itself is nowhere."""
        self.recorder.pending = None
        if self.accumulate is not None:
            self._record(self.accumulate, target.fitted(self.shape))

    def _record(self, run: Run, target: View) -> None:
        recorder = self.recorder
        before, recorder.at = recorder.at, self.site
        try:
            if self.mask is None:
                run(target)
            else:
                self.mask.apply(run, target)
        finally:
            recorder.at = before


def fresh(shape: Sequence[int], dtype: Any, space: Space = Space.SBUF, *, filled: bool = False) -> View:
    """Returns a view of a new buffer, for a result."""
    return whole(current().allocate(space, shape, dtype, filled=filled))
