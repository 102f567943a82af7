"""The protocol of all checkpoint formats, and functions that they share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.neuron.numerics.int4 import ALL, Stored, W, taken

BF16_MAX = (2 - 2**-7) * 2.0**127
"""The largest finite bf16."""
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


class StoredAs(NamedTuple):
    """The quantisation of a checkpoint's weights, for people; None where there is none.

    kinds: all of it. four_bits: the part that four-bit formats keep as it is. floats: the part that they
    quantise as if it had been plain.
    """

    kinds: str | None = None
    four_bits: str | None = None
    floats: str | None = None


class Checkpoint(Protocol):
    """Named tensors on disk, read one at a time.

    `fingerprint` changes when the weights do; it is the key of caches made from them.
    """

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def stored_as(self) -> StoredAs: ...

    def names(self) -> Iterable[str]:
        """Returns the Hugging Face names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor; raises UserError where it is missing."""

    def file(self, name: str) -> Path:
        """Returns the file that holds a tensor, for messages."""

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        """Returns some rows as a fresh fp32 C-contiguous copy; raises UserError for missing tensors and
        broken files."""

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """Returns a matrix as four-bit formats keep it: its own grid where that has four bits, int8 for other
        grids, else as `read` returns it."""

    def by_rows(self, name: str) -> bool:
        """Tells whether some rows of a tensor are read without the others."""


def placed(shape: tuple[int, ...], rows: slice) -> tuple[int, tuple[int, ...]]:
    """Returns how many elements of a tensor come before some of its rows, and the shape of these rows."""
    if rows == ALL:
        return 0, shape
    start, stop, _ = rows.indices(shape[0])
    return start * math.prod(shape[1:]), (stop - start, *shape[1:])


def gathered(read: Callable[[slice], W], index: npt.NDArray[np.intp]) -> W:
    """Returns the rows of `index` in this order; `read` reads all rows from the first to the last of them."""
    first = int(index.min())
    return taken(read(slice(first, int(index.max()) + 1)), index - first)


def missing(path: Path, name: str) -> UserError:
    return UserError(f"{path}: tensor {shown(name)} is missing")


def fingerprint(files: Iterable[tuple[Path, bytes]]) -> str:
    """Returns a digest of headers, sizes and modification times, which is cheap for a large file."""
    digest = hashlib.sha256()
    for path, header in files:
        status = path.stat()
        digest.update(f"{len(header)} {status.st_size} {status.st_mtime_ns} ".encode())
        digest.update(header)
    return digest.hexdigest()


def read_array(path: Path, dtype: str, count: int, offset: int, name: str) -> npt.NDArray[np.generic]:
    """Reads `count` little-endian elements of a file.

    Reads instead of mapping: a file that shrinks meanwhile gives an error, not a SIGBUS.
    """
    try:
        array = np.fromfile(path, dtype, count, offset=offset)
    except OSError as error:
        raise UserError(f"{path}: tensor {name} cannot be read: {error.strerror}") from error
    if len(array) != count:
        raise UserError(
            f"{path}: truncated: tensor {name} needs {count} elements, the file ends after {len(array)}"
        )
    return array


def finite(values: npt.NDArray[np.float32], path: Path, name: str) -> npt.NDArray[np.float32]:
    """Returns the values; raises UserError where one is not finite, or is infinite once rounded to bf16.

    One such weight makes every answer nonsense, and one such scale all of its channel.
    """
    # NaN shows in both extremes; an array of flags would be a quarter as large as the weights.
    low, high = values.min(initial=0.0), values.max(initial=0.0)
    if not (low >= -BF16_MAX and high <= BF16_MAX):
        worst = low if not low >= -BF16_MAX else high
        raise UserError(f"{path}: tensor {shown(name)} holds {worst}: the weights are damaged")
    return values


def widen_bf16(bits: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Converts bf16, held as uint16, to fp32."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
