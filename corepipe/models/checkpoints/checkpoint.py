"""What all checkpoint formats have in common."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.neuron.numerics.int4 import ALL, Stored, W, taken

BF16_MAX = (2 - 2**-7) * 2.0**127
"""The largest finite bf16."""
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


class Checkpoint(Protocol):
    """Named tensors on disk, read one at a time.

    `fingerprint` changes when the weights do; it is the key of caches made from them.  `stored_as` says how
    they are quantised, for people, `four_bits_as` which of that formats of four bits keep as it is, and
    `floats_as` what they quantise as if it had been plain; None where there is none.
    """

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def stored_as(self) -> str | None: ...

    @property
    def four_bits_as(self) -> str | None: ...

    @property
    def floats_as(self) -> str | None: ...

    def names(self) -> Iterable[str]:
        """Hugging Face names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; raises UserError where it is missing."""

    def file(self, name: str) -> Path:
        """The file that holds a tensor, for messages."""

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        """Some rows, as a fresh fp32 C-contiguous copy; raises UserError for missing tensors and broken
        files."""

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """A matrix as four-bit formats keep it: on its own grid where that has four bits, in int8 where it is
        on another one, else as `read` gives it."""

    def by_rows(self, name: str) -> bool:
        """Whether some rows of a tensor are read without the others."""


def placed(shape: tuple[int, ...], rows: slice) -> tuple[int, tuple[int, ...]]:
    """How many elements of a tensor come before some of its rows, and the shape of these."""
    if rows == ALL:
        return 0, shape
    start, stop, _ = rows.indices(shape[0])
    return start * math.prod(shape[1:]), (stop - start, *shape[1:])


def gathered(read: Callable[[slice], W], index: npt.NDArray[np.intp]) -> W:
    """The rows of `index`, in this order, of those from the first to the last of them, which `read` reads."""
    first = int(index.min())
    return taken(read(slice(first, int(index.max()) + 1)), index - first)


def missing(path: Path, name: str) -> UserError:
    return UserError(f"{path}: tensor {shown(name)} is missing")


def fingerprint(files: Iterable[tuple[Path, bytes]]) -> str:
    """Digest of headers, sizes and modification times, so that it costs nothing for a large file."""
    digest = hashlib.sha256()
    for path, header in files:
        status = path.stat()
        digest.update(f"{len(header)} {status.st_size} {status.st_mtime_ns} ".encode())
        digest.update(header)
    return digest.hexdigest()


def read_array(path: Path, dtype: str, count: int, offset: int, name: str) -> npt.NDArray[np.generic]:
    """`count` little-endian elements of a file.

    A plain read rather than a mapping: a file that shrinks meanwhile gives an error, not a SIGBUS.
    """
    try:
        array = np.fromfile(path, dtype, count, offset=offset)
    except OSError as error:
        raise UserError(f"{path}: tensor {name} cannot be read: {error.strerror}") from error
    if len(array) != count:
        raise UserError(
            f"{path}: truncated: tensor {name} wants {count} elements, the file ends after {len(array)}"
        )
    return array


def finite(values: npt.NDArray[np.float32], path: Path, name: str) -> npt.NDArray[np.float32]:
    """The values; raises UserError where one is not finite, or is infinite once rounded to bf16.

    One such weight makes every answer nonsense, and a scale of it all of its channel.
    """
    # The extremes, which NaN is both of: no array of flags as large as a quarter of the weights.
    low, high = values.min(initial=0.0), values.max(initial=0.0)
    if not (low >= -BF16_MAX and high <= BF16_MAX):
        worst = low if not low >= -BF16_MAX else high
        raise UserError(f"{path}: tensor {shown(name)} holds {worst}: the weights are damaged")
    return values


def widen_bf16(bits: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """bf16 held as uint16 to fp32."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
