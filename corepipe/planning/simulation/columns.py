"""Figures by the million: a column each, in as few bytes as they take."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SECONDS, COUNT, LARGE, SMALL = "dIQH"
"""Codes of columns (`array.array`): 8, 4, 8 and 2 bytes each."""


class Columns:
    """A table that grows: a name and a code for each column, in order."""

    def __init__(self, codes: Mapping[str, str]) -> None:
        self._arrays = [array(code) for code in codes.values()]
        self._place = {name: place for place, name in enumerate(codes)}
        self._append = [column.append for column in self._arrays]
        self._extend = [column.extend for column in self._arrays]

    def append(self, *row: float) -> None:
        """A row: a value for each column."""
        for append, value in zip(self._append, row, strict=True):
            append(value)

    def extend(self, *columns: Iterable[float]) -> None:
        """Rows: of each column as many values."""
        for extend, values in zip(self._extend, columns, strict=True):
            extend(values)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, name: str) -> Floats:
        """A column, as it is now."""
        return np.array(self._arrays[self._place[name]], np.float64)

    @property
    def columns(self) -> dict[str, Floats]:
        """All of them, by name."""
        return {name: self[name] for name in self._place}

    @property
    def row_bytes(self) -> int:
        """Memory that a row takes."""
        return sum(column.itemsize for column in self._arrays)
