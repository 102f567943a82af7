"""Types, memories and choices that kernels of the current dialect name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any

import ml_dtypes
import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import current
from corepipe.nki.rules.language import USABLE

RESERVED = 16 << 10
"""Bytes of a partition of SBUF that kernels cannot use."""

DTYPES: dict[str, np.dtype[Any]] = {
    "bool_": np.dtype(np.bool_),
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")},
    **{name: np.dtype(name) for name in ("float16", "float32")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}


@dataclass(frozen=True)
class Unsupported:
    """A type that kernels may name and compare with; tensors of it are refused."""

    name: str

    def __str__(self) -> str:
        return self.name


PACKED = {
    name: Unsupported(name) for name in ("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4", "tfloat32")
}
"""Types of MX products, of which an element packs four, and the one whose bits numpy cannot hold."""


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Returns numpy's type.  Raises KernelError for one that is not simulated."""
    if isinstance(dtype, Unsupported):
        raise current().refuse("dtype", f"tensors of {dtype} are not simulated")
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise current().refuse("dtype", f"{dtype!r} is no type of elements") from None
    if found.hasobject:
        raise current().refuse("dtype", f"{dtype!r} is no type of elements")
    return found


class MemoryRegion(StrEnum):
    """Memories that `buffer=` names."""

    sbuf = "sbuf"
    psum = "psum"
    hbm = "hbm"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    @property
    def space(self) -> Space:
        return {"sbuf": Space.SBUF, "psum": Space.PSUM}.get(self.value, Space.HBM)


class EngineName(Enum):
    """Engines that `engine=` names."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


def engine_of(name: Any) -> Engine | None:
    """Returns the engine that a kernel chose, None where it left the choice."""
    return None if name in (None, EngineName.unknown) else Engine(name.name)


class DgeMode(Enum):
    """Makers of DMA descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class OobMode(Enum):
    """Ways to treat indices outside of a tensor."""

    error = 0
    skip = 1


class PerfMode(Enum):
    """Modes of a product."""

    none = "none"
    double_row = "double_row"


class NcVersion(IntEnum):
    """Generations of NeuronCores."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class DmaEngine(Enum):
    """Engines of transfers between cores."""

    dma = 1
    gpsimd_dma = 2


def get_nc_version() -> NcVersion:
    return NcVersion(int(current().generation[1:]))


class TileSize:
    """Limits of tiles."""

    pmax = 128
    psum_fmax = 512
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    psum_num_banks = 8
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of a partition that kernels may use."""
        return USABLE[current().generation]

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        return self.pmax * (self.sbuf_fmax_bytes + RESERVED)
