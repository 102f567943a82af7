"""Quantised safetensors read as fp32 weights: fp8 and integers times their scales."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import StoredAs
from corepipe.models.checkpoints.partly_quantized import PartlyQuantized, contradiction
from corepipe.models.checkpoints.quantization import FOUR, Quantization, WeightScheme
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.neuron.numerics.int4 import GROUPS, Int4, in_groups

F32 = npt.NDArray[np.float32]

PIECE = 1 << 20
"""Values that are computed at once."""
STORED = {"F8_E4M3": "float", "I8": "int", "I32": "int"}
"""Storage types of quantised weights, and the kind of their values; I32 has several in a word."""
SCALES = ("weight_scale_inv", "weight_scale")
"""DeepSeek's name and the common one; a weight is multiplied by either."""
PACKED, SHAPE, ZERO_POINT, ORDER = "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx"
PARTS = (PACKED, SHAPE, ZERO_POINT, ORDER, *SCALES, "input_scale", "input_zero_point", "output_scale")
"""Tensors that belong to a quantised weight, by the end of their names."""
MOST = 1 << 31
"""The most rows or columns of a weight."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """The names of a weight's tensors; None for those that it does not have."""

    name: str
    stored: str
    shape: tuple[int, int]
    scheme: WeightScheme
    scale: str
    zero_point: str | None
    order: str | None


class QuantizedCheckpoint(PartlyQuantized[QuantizedWeight]):
    """A checkpoint with fp8, or integers of compressed-tensors.

    Raises UserError for a quantised weight that the configuration does not describe.
    """

    def __init__(self, plain: SafetensorsCheckpoint, quantization: Quantization) -> None:
        present = [
            name for name in plain.names() if name.endswith(f".{PACKED}") or _is_quantised(plain, name)
        ]
        found = (_described(plain, quantization, stored) for stored in present)
        weights = {weight.name: weight for weight in found}
        parts = {f"{_module(name)}.{part}" for name in weights for part in PARTS}
        super().__init__(plain, quantization, weights, parts)

    @property
    def stored_as(self) -> StoredAs:
        schemes = {weight.scheme for weight in self._weights.values()}
        direct = filter(_is_direct, schemes)
        return StoredAs(", ".join(sorted(map(str, schemes))), ", ".join(sorted(map(str, direct))) or None)

    def dense(self, weight: QuantizedWeight) -> F32:
        """Returns a weight times its scales."""
        count, columns = weight.shape
        values = np.empty(weight.shape, np.float32)
        scales = _Scales(self._plain, weight)
        at_once = max(1, PIECE // max(1, columns))
        for start in range(0, count, at_once):
            end = min(count, start + at_once)
            piece = values[start:end]
            self._numbers(weight, start, end, piece)
            zero_point = scales.zero_points(start, end)
            if zero_point is not None:
                piece -= zero_point
            with np.errstate(all="ignore"):  # a damaged scale overflows; the caller checks for it
                piece *= scales.scales(start, end)
        return values

    def four_bits(self, weight: QuantizedWeight) -> Int4 | None:
        """Returns four-bit integers as their distance from the least, -8."""
        if not _is_direct(weight.scheme):
            return None
        rows, columns = weight.shape
        numbers = np.empty(weight.shape, np.float32)
        self._numbers(weight, 0, rows, numbers)
        scales = _Scales(self._plain, weight)
        zero = None if scales.zero_grid is None else scales.zero_grid + 8
        return in_groups((numbers + 8).astype(np.uint8), scales.grid, zero, weight.scheme.size[1] or columns)

    def _numbers(self, weight: QuantizedWeight, start: int, end: int, out: F32) -> None:
        """Reads rows as they are stored: fp8, or integers without a zero point."""
        stored = self._plain.raw(weight.stored, start, end)
        if weight.stored.endswith(f".{PACKED}"):
            out[:] = _unpack(stored, weight.scheme.bits, weight.shape[1])
        elif stored.dtype == np.uint8:
            out[:] = _fp8_values()[stored.view(np.uint8)]
        else:
            _check_bits(self._plain, weight.stored, weight.scheme.bits, stored)
            out[:] = stored


def _described(plain: SafetensorsCheckpoint, quantization: Quantization, stored: str) -> QuantizedWeight:
    """Finds the scheme of a weight from its tensors; the configuration must describe it."""
    module, packed = _module(stored), stored.endswith(f".{PACKED}")
    shape = _packed_shape(plain, module) if packed else plain.shape_of(stored)
    if len(shape) != 2 or 0 in shape:
        raise contradiction(plain, stored, f"has shape {list(shape)}: quantised weights have two dimensions")
    scale = next(filter(None, (_part(plain, module, part) for part in SCALES)), None)
    if scale is None:
        raise contradiction(plain, stored, f"has no scale: {module}.{SCALES[1]} is missing")
    weight = (shape[0], shape[1])
    for scheme in quantization.schemes:
        if _fits(plain, scheme, stored, weight, scale):
            zero_point, order = (_part(plain, module, part) for part in (ZERO_POINT, ORDER))
            return QuantizedWeight(f"{module}.weight", stored, weight, scheme, scale, zero_point, order)
    described = ", ".join(map(str, quantization.schemes)) or "no quantised weights"
    has = f"{plain.dtype(stored)} for {list(shape)}, scales {list(plain.shape_of(scale))}"
    raise contradiction(
        plain, stored, f"({has}) contradicts quantization_config, which describes {described}"
    )


def _fits(
    plain: SafetensorsCheckpoint, scheme: WeightScheme, stored: str, shape: tuple[int, int], scale: str
) -> bool:
    module, packed = _module(stored), stored.endswith(f".{PACKED}")
    rows, columns = shape
    if scheme.kind != STORED.get(plain.dtype(stored)):
        return False
    if packed and plain.shape_of(stored) != (rows, _words(columns, scheme.bits)):
        return False
    shapes = scheme.scale_shapes(rows, columns)
    if plain.shape_of(scale) not in shapes:
        return False
    order = _part(plain, module, ORDER)
    if (order is not None) != scheme.ordered or (order and plain.shape_of(order) != (columns,)):
        return False
    zero_point = _part(plain, module, ZERO_POINT)
    if zero_point is None:
        return scheme.symmetric
    if plain.dtype(zero_point) == "I32":
        shapes = tuple((_words(s[0], scheme.bits), *s[1:]) for s in shapes if s)
    return plain.shape_of(zero_point) in shapes


def _part(plain: SafetensorsCheckpoint, module: str, part: str) -> str | None:
    """Returns the name of a weight's tensor, where it exists."""
    name = f"{module}.{part}"
    return name if plain.has(name) else None


def _packed_shape(plain: SafetensorsCheckpoint, module: str) -> tuple[int, ...]:
    """Returns rows and columns before they were packed."""
    name = _part(plain, module, SHAPE)
    if name is None:
        raise contradiction(plain, f"{module}.{PACKED}", f"has no shape: {module}.{SHAPE} is missing")
    if plain.dtype(name) not in ("I64", "I32") or plain.shape_of(name) != (2,):
        raise contradiction(plain, name, "is not two integers")
    values = [int(value) for value in plain.raw(name, 0, 2)]
    if not all(0 <= value < MOST for value in values):
        raise contradiction(plain, name, f"is {values}")
    return tuple(values)


class _Scales:
    """Scales and zero points of a weight, for any of its rows."""

    def __init__(self, plain: SafetensorsCheckpoint, weight: QuantizedWeight) -> None:
        self._weight = weight
        grid = _grid(weight)
        self._scales = plain.read(weight.scale).reshape(grid)
        self._zero_points = None
        if weight.zero_point is not None:
            self._zero_points = _zero_points(plain, weight.zero_point, weight.scheme, grid)
        self._group = None if weight.order is None else self._groups_of_columns(plain, weight.order)

    @property
    def grid(self) -> F32:
        """The scales as they are: one a group."""
        return self._scales

    @property
    def zero_grid(self) -> F32 | None:
        return self._zero_points

    def scales(self, start: int, end: int) -> F32:
        return self._spread(self._scales, start, end)

    def zero_points(self, start: int, end: int) -> F32 | None:
        return None if self._zero_points is None else self._spread(self._zero_points, start, end)

    def _spread(self, grid: F32, start: int, end: int) -> F32:
        """Returns a number for each value of the rows, or one for all that share it."""
        high, wide = self._weight.scheme.size
        rows = grid[np.arange(start, end) // high] if high else grid
        if self._group is not None:
            return rows[:, self._group]
        columns = self._weight.shape[1]
        return np.repeat(rows, min(wide, columns), axis=1)[:, :columns] if wide else rows

    def _groups_of_columns(self, plain: SafetensorsCheckpoint, name: str) -> npt.NDArray[np.intp]:
        """Returns the group of each column, where columns were quantised in another order."""
        groups = plain.raw(name, 0, self._weight.shape[1]).astype(np.intp)
        if groups.min() < 0 or groups.max() >= self._scales.shape[1]:
            raise UserError(
                f"{plain.file(name)}: tensor {shown(name)} names none of the {self._scales.shape[1]} groups"
            )
        return groups


def _grid(weight: QuantizedWeight) -> tuple[int, int]:
    """Returns the number of scales along rows and columns."""
    (grid,) = (s for s in weight.scheme.scale_shapes(*weight.shape) if len(s) == 2)
    return grid[0], grid[1]


def _zero_points(plain: SafetensorsCheckpoint, name: str, scheme: WeightScheme, grid: tuple[int, int]) -> F32:
    """Reads zero points, which may be packed along the rows."""
    shape = plain.shape_of(name)
    stored = plain.raw(name, 0, shape[0] if shape else 1)
    if plain.dtype(name) == "I32":
        stored = _unpack(stored.reshape(-1, grid[1]).T, scheme.bits, grid[0]).T
    elif scheme.kind == "int":
        _check_bits(plain, name, scheme.bits, stored)
    return np.ascontiguousarray(stored, np.float32).reshape(grid)


def _check_bits(plain: SafetensorsCheckpoint, name: str, bits: int, values: npt.NDArray[np.generic]) -> None:
    """Raises UserError for integers, each stored by itself, that do not fit in `bits` bits."""
    limit = 1 << (bits - 1)
    if values.size and not -limit <= values.min() <= values.max() < limit:
        raise UserError(
            f"{plain.file(name)}: tensor {shown(name)} has integers from {values.min()} to {values.max()}, "
            f"and quantization_config says {bits} bits"
        )


def _is_direct(scheme: WeightScheme) -> bool:
    """Tells whether four-bit kernels may take the integers without change."""
    whole = scheme.strategy == "channel" or (scheme.strategy == "group" and scheme.size[1] % GROUPS[0] == 0)
    return scheme.kind == "int" and scheme.bits == FOUR and whole and not scheme.ordered


def _is_quantised(plain: SafetensorsCheckpoint, name: str) -> bool:
    return name.endswith(".weight") and plain.dtype(name) in STORED


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _words(count: int, bits: int) -> int:
    """Returns the number of 32-bit words that hold `count` values; none is split between words."""
    return -(-count // (32 // bits))


def _unpack(words: npt.NDArray[np.generic], bits: int, columns: int) -> npt.NDArray[np.int16]:
    """Unpacks the signed values in each row of words, the first in the lowest bits, offset by the least."""
    shifts = np.arange(0, 32 // bits * bits, bits, dtype=np.uint32)
    fields = (words.astype(np.int64).astype(np.uint32)[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    values = fields.reshape(len(words), -1)[:, :columns].astype(np.int16)
    return values - np.int16(1 << (bits - 1))


@cache
def _fp8_values() -> F32:
    """Returns the value of each of 256 bytes in OCP's e4m3, which has NaN and no infinities."""
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    return np.asarray(codes, np.float32)
