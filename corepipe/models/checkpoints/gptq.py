"""GPTQ's and AWQ's checkpoints: eight four-bit integers in a word, zero points alike, scales in fp16.

The layouts are those of AutoGPTQ (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, `pack`) and AutoAWQ
(awq/modules/linear/gemm.py, `from_linear`): matrices are [in, out]; GPTQ packs along the inputs, AWQ along
the outputs, each eight of them in an order of its own. GPTQ's first format keeps zero points less one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import finite
from corepipe.models.checkpoints.quantization import AWQ, Quantization
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import ALL, Int8, Stored, in_groups, taken

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

WORD = 8
"""Integers in a word of 32 bits, the first in the lowest bits."""
AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The position of each of eight outputs in a word."""
NUMBERS, ZEROS, SCALES, GROUPS = "qweight", "qzeros", "scales", "g_idx"


@dataclass(frozen=True, slots=True)
class _Packed:
    """A module's matrix: [outputs, inputs], and the number of inputs that share a scale."""

    module: str
    shape: tuple[int, int]
    group: int


class GptqCheckpoint:
    """A safetensors checkpoint whose modules have `qweight` instead of `weight`, under the usual names.

    Raises UserError for shapes that contradict the configuration.
    """

    floats_as = None

    def __init__(self, plain: SafetensorsCheckpoint, quantization: Quantization) -> None:
        self.path = plain.path
        self.fingerprint = plain.fingerprint
        self._plain = plain
        (self._scheme,) = quantization.schemes
        self._awq = quantization.method == AWQ
        self._less_one = quantization.zeros_less_one
        present = set(plain.names())
        modules = [name.removesuffix(f".{NUMBERS}") for name in present if name.endswith(f".{NUMBERS}")]
        self._weights = {f"{module}.weight": self._describe(module) for module in modules}
        if not self._weights:
            raise quantization.fields.error(
                "quantization_config",
                f"says {quantization.method}, but no weight in {shown(plain.path, 200)} is quantised",
            )
        parts = {f"{module}.{part}" for module in modules for part in (NUMBERS, ZEROS, SCALES, GROUPS)}
        biases = {f"{module}.bias" for module in modules if self._is_needless_bias(f"{module}.bias")}
        self._names = (present - parts - biases) | self._weights.keys()

    @property
    def stored_as(self) -> str:
        """The scheme, for people."""
        return str(self._scheme)

    @property
    def four_bits_as(self) -> str | None:
        return str(self._scheme) if self._scheme.size[1] % 32 == 0 else None

    def names(self) -> Iterable[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights[name].shape if name in self._weights else self._plain.shape(name)

    def file(self, name: str) -> Path:
        return self._plain.file(f"{self._weights[name].module}.{NUMBERS}" if name in self._weights else name)

    def read(self, name: str, rows: slice = ALL) -> F32:
        """Returns a quantised weight as the floats it represents, or a plain one as it is."""
        if name not in self._weights:
            return self._plain.read(name, rows)
        weight = self._weights[name]
        values, scale, zeros = self._numbers(weight)
        _, inputs = weight.shape
        spread = (np.repeat(numbers, weight.group, axis=1)[:, :inputs] for numbers in (zeros, scale))
        dense = values.astype(np.float32)
        dense -= next(spread)
        with np.errstate(all="ignore"):  # a damaged scale overflows; `finite` checks for it below
            dense *= next(spread)
        return finite(dense, self.file(name), name)[rows]

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        if name not in self._weights:
            return self._plain.read(name, rows)
        weight = self._weights[name]
        direct = in_groups(*self._numbers(weight), weight.group)
        return Int8(*quantize_weight(self.read(name, rows))) if direct is None else taken(direct, rows)

    def by_rows(self, name: str) -> bool:
        return name not in self._weights

    def _numbers(self, weight: _Packed) -> tuple[U8, F32, F32]:
        """Returns integers [outputs, inputs], scales and zero points [outputs, groups]."""
        module, (outputs, inputs) = weight.module, weight.shape
        words, zeros = (self._words(f"{module}.{part}") for part in (NUMBERS, ZEROS))
        scale = finite(self._plain.read(f"{module}.{SCALES}"), self._plain.file(f"{module}.{SCALES}"), module)
        self._check_order(weight)
        values = _unpack(words, by_outputs=self._awq, reordered=self._awq)[:inputs, :outputs]
        points = _unpack(zeros, by_outputs=True, reordered=self._awq)[:, :outputs].astype(np.float32)
        if self._less_one:
            points += 1
        return np.ascontiguousarray(values.T), np.ascontiguousarray(scale.T), np.ascontiguousarray(points.T)

    def _words(self, name: str) -> npt.NDArray[np.uint32]:
        rows, _ = self._plain.shape_of(name)
        return np.ascontiguousarray(self._plain.raw(name, 0, rows)).view("<u4").astype(np.uint32, copy=False)

    def _check_order(self, weight: _Packed) -> None:
        """Raises UserError for inputs quantised in another order, whose neighbours share no scales."""
        name = f"{weight.module}.{GROUPS}"
        if not self._plain.has(name):
            return
        inputs = weight.shape[1]
        if not np.array_equal(self._plain.raw(name, 0, inputs), np.arange(inputs) // weight.group):
            raise UserError(
                f"{self._plain.file(name)}: tensor {shown(name)} has groups in the order of activations "
                "(desc_act), which is not supported: use weights that were quantised without, or a GGUF file"
            )

    def _is_needless_bias(self, name: str) -> bool:
        """Finds the biases of zeros that AutoGPTQ writes for every module without a bias."""
        return self._plain.has(name) and not self._plain.read(name).any()

    def _describe(self, module: str) -> _Packed:
        """Reads the shapes of a matrix from the headers alone."""
        shapes = {}
        for part, kinds in ((NUMBERS, ("I32",)), (ZEROS, ("I32",)), (SCALES, ("F16", "BF16", "F32"))):
            name = f"{module}.{part}"
            shapes[part] = self._plain.shape_of(name)
            if self._plain.dtype(name) not in kinds or len(shapes[part]) != 2 or 0 in shapes[part]:
                raise self._error(name, f"is {self._plain.dtype(name)} {list(shapes[part])}")
        rows, columns = shapes[NUMBERS]
        inputs, outputs = (rows, columns * WORD) if self._awq else (rows * WORD, columns)
        group = min(self._scheme.size[1] or inputs, inputs)
        wanted = (-(-inputs // group), outputs)
        if shapes[SCALES] != wanted:
            raise self._error(f"{module}.{SCALES}", f"is {list(shapes[SCALES])}, not {list(wanted)}")
        if shapes[ZEROS] != (wanted[0], -(-outputs // WORD)):
            raise self._error(f"{module}.{ZEROS}", f"is {list(shapes[ZEROS])}")
        if self._plain.has(f"{module}.{GROUPS}") and self._plain.shape_of(f"{module}.{GROUPS}") != (inputs,):
            raise self._error(f"{module}.{GROUPS}", f"is not of {inputs} inputs")
        return _Packed(module, (outputs, inputs), group)

    def _error(self, name: str, why: str) -> UserError:
        return UserError(
            f"{self._plain.file(name)}: tensor {shown(name)} {why}, which contradicts quantization_config "
            f"({self._scheme})"
        )


def _unpack(words: npt.NDArray[np.uint32], *, by_outputs: bool, reordered: bool) -> U8:
    """Unpacks words [rows, columns] to eight times as many columns, or rows."""
    shifts = 4 * (AWQ_ORDER if reordered else np.arange(WORD)).astype(np.uint32)
    rows, columns = words.shape
    if by_outputs:
        return (words[:, :, None] >> shifts & np.uint32(15)).astype(np.uint8).reshape(rows, -1)
    return (words[:, None, :] >> shifts[:, None] & np.uint32(15)).astype(np.uint8).reshape(-1, columns)
