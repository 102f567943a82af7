"""`nki.language` of the legacy dialect: its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.legacy import broadcasts, elementwise, indices, memory, products, reductions
from corepipe.nki.dialects.legacy.tiles import Tile
from corepipe.nki.isa.operations import BINARY, UNARY

OTHERS = {"abs_max", "abs_min", "copy", "invert", "negative", "reciprocal"}
"""Operations of instructions that are no functions of a tile here, or run on another engine."""


def _binary(name: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Any:
        return elementwise.binary(name, x, y, dtype=dtype, mask=mask)

    return _named(function, name)


def _unary(name: str) -> Callable[..., Any]:
    def function(x: Any, *, dtype: Any = None, mask: Any = None) -> Any:
        return elementwise.unary(name, x, dtype=dtype, mask=mask)

    return _named(function, name)


def _reduction(name: str, op: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Any:
        return reductions.reduced(op, x, axis, dtype=dtype, mask=mask, keepdims=keepdims)

    return _named(function, name)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Gives a function the name by which instructions know it as an operation."""
    function.__name__ = function.__qualname__ = name
    return function


def negative(x: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Returns -x."""
    return elementwise.with_scalar("multiply", x, -1, False, dtype, mask)


def expand_dims(data: Tile, axis: int) -> Tile:
    """Returns the same elements with an axis of length 1 inserted."""
    return data.expand_dims(axis)


def device_print(prefix: str, x: Any, *, mask: Any = None) -> None:
    """Prints a tile, where values are computed."""
    view = x.part if isinstance(x, Tile) else x
    if isinstance(x, Tile):
        current().flush()
        view = view.array() if current().values else f"{x.dtype}{list(x.shape)}"
    print(prefix, view)  # noqa: T201  the kernel asks for it


def rand(shape: Any, dtype: Any = np.float32) -> Tile:
    """Returns random numbers from 0 to 1."""
    recorder = current()
    lengths = tuple(int(n) for n in shape)
    tile = memory.full(lengths, 0, dtype)
    if recorder.values:
        source = recorder.constants.setdefault("random", np.random.default_rng(0))
        tile.part.array()[...] = source.random(lengths, np.float32)
    return tile


class _Limits:
    """Limits of numbers, as `nl.fp32.min`."""

    def __init__(self, dtype: Any) -> None:
        self._info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]

    @property
    def min(self) -> float:
        return float(self._info.min)

    @property
    def max(self) -> float:
        return float(self._info.max)


TILE_SIZE = SimpleNamespace(
    pmax=128,
    psum_fmax=512,
    gemm_stationary_fmax=128,
    gemm_moving_fmax=512,
    bn_stats_fmax=512,
    psum_min_align=4,
    sbuf_min_align=1,
    total_available_sbuf_size=(192 - 16) * 1024,
)

TYPES: Mapping[str, Any] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "tfloat32": np.dtype(np.float32),
    "float32": np.float32,
    "float16": np.float16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int16": np.int16,
    "uint16": np.uint16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool_": np.bool_,
}


def names() -> dict[str, Any]:
    """Returns what `neuronxcc.nki.language` has."""
    found: dict[str, Any] = dict(TYPES)
    found.update({name: _binary(name) for name in BINARY if name not in OTHERS})
    found.update({name: _unary(name) for name in UNARY if name not in OTHERS})
    found.update(
        {
            "sum": _reduction("sum", "add"),
            "prod": _reduction("prod", "multiply"),
            "max": _reduction("max", "maximum"),
            "min": _reduction("min", "minimum"),
            "mean": reductions.mean,
            "var": _named(reductions.variance, "var"),
            "all": reductions.every,
            "softmax": reductions.softmax,
            "rms_norm": reductions.rms_norm,
            "loop_reduce": reductions.loop_reduce,
        }
    )
    found.update(
        {
            "sbuf": memory.SBUF,
            "psum": memory.PSUM,
            "hbm": memory.HBM,
            "shared_hbm": memory.SHARED_HBM,
            "private_hbm": memory.PRIVATE_HBM,
            "par_dim": memory.Partitions,
            "tile_size": TILE_SIZE,
            "fp32": _Limits(np.float32),
            "bfp16": _Limits(ml_dtypes.bfloat16),
            "finfo": ml_dtypes.finfo,
            "mgrid": indices.MGrid(),
            "nc": indices.Cores,
        }
    )
    for function in (
        *(memory.ndarray, memory.zeros, memory.ones, memory.full, memory.empty_like, memory.zeros_like),
        *(memory.shared_constant, memory.shared_identity_matrix),
        *(memory.load, memory.store, memory.load_transpose2d),
        *(indices.affine_range, indices.sequential_range, indices.static_range),
        *(indices.arange, indices.ds, indices.program_id, indices.num_programs, indices.program_ndim),
        *(indices.spmd_dim, broadcasts.broadcast_to, products.matmul, products.transpose),
        *(elementwise.copy, elementwise.reciprocal, elementwise.invert, elementwise.where),
        *(negative, expand_dims, device_print, rand),
    ):
        found[function.__name__] = function
    found["static_cast"] = lambda input_data, dtype: elementwise.copy(input_data, dtype=dtype)
    return found
