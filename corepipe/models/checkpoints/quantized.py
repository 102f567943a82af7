"""Quantised safetensors read as fp32 weights: fp8 and integers times their scales."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import finite
from corepipe.models.checkpoints.quantization import FOUR, Quantization, WeightScheme
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import ALL, GROUPS, Int4, Int8, Stored, in_groups, taken

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


class QuantizedCheckpoint:
    """A safetensors checkpoint with some quantised weights, all under their usual names.

    Raises UserError for a quantised weight that the configuration does not describe.
    """

    floats_as = None

    def __init__(self, plain: SafetensorsCheckpoint, quantization: Quantization) -> None:
        self.path = plain.path
        self.fingerprint = plain.fingerprint
        self._plain = plain
        self._quantization = quantization
        present = set(plain.names())
        self._weights: dict[str, QuantizedWeight] = {}
        for stored in present:
            if stored.endswith(f".{PACKED}") or _is_quantised(plain, stored):
                weight = self._describe(stored)
                self._weights[weight.name] = weight
        if not self._weights:
            raise quantization.fields.error(
                "quantization_config",
                f"says {quantization.method}, but no weight in {shown(plain.path, 200)} is quantised",
            )
        parts = {f"{_module(name)}.{part}" for name in self._weights for part in PARTS}
        self._names = (present - parts) | self._weights.keys()

    @property
    def stored_as(self) -> str:
        """The schemes that occur, for people."""
        return ", ".join(sorted({str(weight.scheme) for weight in self._weights.values()}))

    def names(self) -> Iterable[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights[name].shape if name in self._weights else self._plain.shape(name)

    def file(self, name: str) -> Path:
        return self._plain.file(self._weights[name].stored if name in self._weights else name)

    def read(self, name: str, rows: slice = ALL) -> F32:
        """Returns a quantised weight times its scales, or a plain one as it is."""
        if name not in self._weights:
            return self._plain.read(name, rows)
        weight = self._weights[name]
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
            with np.errstate(all="ignore"):  # a damaged scale overflows; `finite` checks for it below
                piece *= scales.scales(start, end)
        return finite(values, self.file(name), name)[rows]

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """Returns four-bit integers in groups without change, others in int8."""
        if name not in self._weights:
            return self._plain.read(name, rows)
        weight = self._weights[name]
        direct = self._four_bits(weight) if _is_direct(weight.scheme) else None
        return Int8(*quantize_weight(self.read(name, rows))) if direct is None else taken(direct, rows)

    def by_rows(self, name: str) -> bool:
        return name not in self._weights

    @property
    def four_bits_as(self) -> str | None:
        schemes = {weight.scheme for weight in self._weights.values() if _is_direct(weight.scheme)}
        return ", ".join(sorted(map(str, schemes))) or None

    def _four_bits(self, weight: QuantizedWeight) -> Int4 | None:
        """Returns four-bit integers as their distance from the least, -8."""
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

    def _describe(self, stored: str) -> QuantizedWeight:
        """Finds the scheme of a weight from its tensors; the configuration must describe it."""
        module, packed = _module(stored), stored.endswith(f".{PACKED}")
        shape = self._packed_shape(module) if packed else self._plain.shape_of(stored)
        if len(shape) != 2 or 0 in shape:
            raise self._error(stored, f"has shape {list(shape)}: quantised weights have two dimensions")
        scale = next(filter(None, (self._part(module, part) for part in SCALES)), None)
        if scale is None:
            raise self._error(stored, f"has no scale: {module}.{SCALES[1]} is missing")
        weight = (shape[0], shape[1])
        for scheme in self._quantization.schemes:
            if self._fits(scheme, stored, weight, scale):
                zero_point, order = (self._part(module, part) for part in (ZERO_POINT, ORDER))
                return QuantizedWeight(f"{module}.weight", stored, weight, scheme, scale, zero_point, order)
        described = ", ".join(map(str, self._quantization.schemes)) or "no quantised weights"
        has = f"{self._plain.dtype(stored)} for {list(shape)}, scales {list(self._plain.shape_of(scale))}"
        raise self._error(stored, f"({has}) contradicts quantization_config, which describes {described}")

    def _fits(self, scheme: WeightScheme, stored: str, shape: tuple[int, int], scale: str) -> bool:
        module, packed = _module(stored), stored.endswith(f".{PACKED}")
        rows, columns = shape
        if scheme.kind != STORED.get(self._plain.dtype(stored)):
            return False
        if packed and self._plain.shape_of(stored) != (rows, _words(columns, scheme.bits)):
            return False
        shapes = scheme.scale_shapes(rows, columns)
        if self._plain.shape_of(scale) not in shapes:
            return False
        order = self._part(module, ORDER)
        if (order is not None) != scheme.ordered or (order and self._plain.shape_of(order) != (columns,)):
            return False
        zero_point = self._part(module, ZERO_POINT)
        if zero_point is None:
            return scheme.symmetric
        if self._plain.dtype(zero_point) == "I32":
            shapes = tuple((_words(s[0], scheme.bits), *s[1:]) for s in shapes if s)
        return self._plain.shape_of(zero_point) in shapes

    def _part(self, module: str, part: str) -> str | None:
        """Returns the name of a weight's tensor, where it exists."""
        name = f"{module}.{part}"
        return name if self._plain.has(name) else None

    def _packed_shape(self, module: str) -> tuple[int, ...]:
        """Returns rows and columns before they were packed."""
        name = self._part(module, SHAPE)
        if name is None:
            raise self._error(f"{module}.{PACKED}", f"has no shape: {module}.{SHAPE} is missing")
        if self._plain.dtype(name) not in ("I64", "I32") or self._plain.shape_of(name) != (2,):
            raise self._error(name, "is not two integers")
        values = [int(value) for value in self._plain.raw(name, 0, 2)]
        if not all(0 <= value < MOST for value in values):
            raise self._error(name, f"is {values}")
        return tuple(values)

    def _error(self, name: str, why: str) -> UserError:
        return UserError(f"{self._plain.file(name)}: tensor {shown(name)} {why}")


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
