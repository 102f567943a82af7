"""Figures by the million: a column each, in as few bytes as they take."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SECONDS, COUNT, LARGE, SMALL = "dIQH"
"""Codes of columns (`array.array`): 8, 4, 8 and 2 bytes each."""

AT_ONCE = 1024
"""Rows that are written to their columns at a time."""


class RecordTable(Protocol):
    """A table of figures, for reading."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> Floats:
        """A column."""

    def parts(self, names: Sequence[str], rows: int) -> Iterator[Floats]:
        """[names, rows at most] of each part of the table, in order."""

    @property
    def columns(self) -> dict[str, Floats]:
        """Returns all columns, by name."""

    @property
    def nbytes(self) -> int:
        """Memory that all rows take."""


class Columns:
    """A table that grows: a name and a code for each column, in order."""

    def __init__(self, codes: Mapping[str, str]) -> None:
        self._arrays = [array(code) for code in codes.values()]
        self._place = {name: place for place, name in enumerate(codes)}
        self._latest: list[tuple[float, ...]] = []  # rows that are in no column yet

    def append(self, *row: float) -> None:
        """A row: a value for each column."""
        self._latest.append(row)
        if len(self._latest) == AT_ONCE:
            self._write()

    def extend(self, *columns: Iterable[float]) -> None:
        """Rows: of each column as many values."""
        self._latest.extend(zip(*columns, strict=True))
        if len(self._latest) >= AT_ONCE:
            self._write()

    def __len__(self) -> int:
        return len(self._arrays[0]) + len(self._latest)

    def __getitem__(self, name: str) -> Floats:
        """A column, as it is now."""
        self._write()
        return np.array(self._arrays[self._place[name]], np.float64)

    def parts(self, names: Sequence[str], rows: int) -> Iterator[Floats]:
        """[names, rows at most] of each part of the table, in order."""
        self._write()
        columns = [self._arrays[self._place[name]] for name in names]
        for start in range(0, len(self), rows):
            yield np.array([column[start : start + rows] for column in columns], np.float64)

    @property
    def columns(self) -> dict[str, Floats]:
        """Returns all columns, by name."""
        return {name: self[name] for name in self._place}

    def _write(self) -> None:
        if self._latest:
            for column, values in zip(self._arrays, zip(*self._latest, strict=True), strict=True):
                column.extend(values)
            self._latest.clear()

    @property
    def nbytes(self) -> int:
        """Memory that all rows take."""
        self._write()
        return sum(column.itemsize * len(column) for column in self._arrays)
