"""GPTQ's and AWQ's checkpoints: eight four-bit integers in a word, zero points alike, scales in fp16.

The layouts are those of AutoGPTQ (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, `pack`) and AutoAWQ
(awq/modules/linear/gemm.py, `from_linear`): matrices are [in, out]; GPTQ packs along the inputs, AWQ along
the outputs, each eight of them in an order of its own. GPTQ's first format keeps zero points less one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import StoredAs, finite
from corepipe.models.checkpoints.partly_quantized import PartlyQuantized, contradiction
from corepipe.models.checkpoints.quantization import AWQ, Quantization
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.neuron.numerics.int4 import Int4, in_groups

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

    @property
    def stored(self) -> str:
        return f"{self.module}.{NUMBERS}"


class GptqCheckpoint(PartlyQuantized[_Packed]):
    """A checkpoint whose modules have `qweight` instead of `weight`.

    Raises UserError for shapes that contradict the configuration.
    """

    def __init__(self, plain: SafetensorsCheckpoint, quantization: Quantization) -> None:
        (self._scheme,) = quantization.schemes
        self._awq = quantization.method == AWQ
        self._less_one = quantization.zeros_less_one
        self._plain = plain
        ends = f".{NUMBERS}"
        modules = [name.removesuffix(ends) for name in plain.names() if name.endswith(ends)]
        weights = {f"{module}.weight": self._describe(module) for module in modules}
        parts = [f"{module}.{part}" for module in modules for part in (NUMBERS, ZEROS, SCALES, GROUPS)]
        biases = [f"{module}.bias" for module in modules if self._is_needless_bias(f"{module}.bias")]
        super().__init__(plain, quantization, weights, [*parts, *biases])

    @property
    def stored_as(self) -> StoredAs:
        direct = str(self._scheme) if self._scheme.size[1] % 32 == 0 else None
        return StoredAs(str(self._scheme), direct)

    def dense(self, weight: _Packed) -> F32:
        values, scale, zeros = self._numbers(weight)
        _, inputs = weight.shape
        spread = (np.repeat(numbers, weight.group, axis=1)[:, :inputs] for numbers in (zeros, scale))
        dense = values.astype(np.float32)
        dense -= next(spread)
        with np.errstate(all="ignore"):  # a damaged scale overflows; the caller checks for it
            dense *= next(spread)
        return dense

    def four_bits(self, weight: _Packed) -> Int4 | None:
        return in_groups(*self._numbers(weight), weight.group)

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
        return contradiction(
            self._plain, name, f"{why}, which contradicts quantization_config ({self._scheme})"
        )


def _unpack(words: npt.NDArray[np.uint32], *, by_outputs: bool, reordered: bool) -> U8:
    """Unpacks words [rows, columns] to eight times as many columns, or rows."""
    shifts = 4 * (AWQ_ORDER if reordered else np.arange(WORD)).astype(np.uint32)
    rows, columns = words.shape
    if by_outputs:
        return (words[:, :, None] >> shifts & np.uint32(15)).astype(np.uint8).reshape(rows, -1)
    return (words[:, None, :] >> shifts[:, None] & np.uint32(15)).astype(np.uint8).reshape(-1, columns)
