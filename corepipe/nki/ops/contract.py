"""Contracts: the arrays that a kernel is called with in place of an Op, and the values that it must return.

The shapes are those of a physical core's part of the Op.  docs/nki-models.md has them as a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import erf
from typing import Any, ClassVar, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.ops import Op
from corepipe.neuron.timing.kernel_cost import KernelAxis, KernelSteps

Array = npt.NDArray[Any]
F32s = npt.NDArray[np.float32]
F32 = np.dtype(np.float32)

DTYPES = {DType.FP32: F32, DType.BF16: np.dtype(ml_dtypes.bfloat16)}
"""The types of numpy for the compute types of formats."""

BOUNDS = {DType.FP32: 2.0**-12, DType.BF16: 2.0**-5}
"""Largest difference between a kernel's outputs and the Op's, as a share of the largest value of an output:
eight units of bf16's last place, and in fp32 what sums in another order and an engine's functions give."""

ROWS = KernelAxis((1, 128), 4, last=8192)
"""Rows at which kernels are simulated that compute each row by itself: 128 fill the partitions."""

Sizes = tuple[int, int]
"""A size along each axis of a contract; 0 where there is no second one."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """A number that a kernel may take by keyword.  A kernel without this parameter has the default."""

    value: Any
    default: Any

    @property
    def is_default(self) -> bool:
        if isinstance(self.value, float):
            return bool(np.isclose(self.value, self.default, rtol=1e-6))
        return bool(self.value == self.default)


class Source:
    """Random arrays, or with no generator arrays of the same shapes and types that take no memory."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else np.random.default_rng(seed)

    @property
    def is_random(self) -> bool:
        return self._random is not None

    def normal(self, shape: Sequence[int], dtype: np.dtype[Any], scale: float = 1.0) -> Array:
        """Returns normally distributed numbers."""
        if self._random is None:
            return np.broadcast_to(np.zeros((), dtype), shape)
        return (scale * self._random.standard_normal(shape, np.float32)).astype(dtype)

    def uniform(self, shape: Sequence[int], least: float, most: float, sign: int = 1) -> Array:
        """Returns fp32 numbers between two others, evenly distributed in their logarithm, times a sign."""
        if self._random is None:
            return np.broadcast_to(np.zeros((), F32), shape)
        return (sign * np.exp(self._random.uniform(np.log(least), np.log(most), shape))).astype(F32)

    def routed(self, rows: int, experts: int, chosen: int) -> Array:
        """Returns weights [rows, experts] that are 0 but for `chosen` experts of each row, and sum to 1."""
        if self._random is None:
            return np.broadcast_to(np.zeros((), F32), (rows, experts))
        scores = self._random.standard_normal((rows, experts), np.float32)
        least = np.sort(scores, axis=1)[:, -chosen, None]
        weights = np.where(scores >= least, np.exp(scores), np.float32(0))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


@dataclass(frozen=True, slots=True)
class Contract(ABC):
    """One kind of Op with its sizes on a physical core, in place of which a kernel is called.

    kinds: the Ops that it stands for.  steps, axes: how a step's rows and contexts give the sizes, and at
    which sizes a kernel is simulated.  compared: those at which its outputs are compared.
    optional: parameters of the last arrays, which a kernel need not have.
    """

    name: ClassVar[str]
    kinds: ClassVar[type[Op]]
    steps: ClassVar[KernelSteps] = KernelSteps.ROWS
    axes: ClassVar[tuple[KernelAxis, KernelAxis | None]] = (ROWS, None)
    compared: ClassVar[Sequence[Sizes]] = ((1, 0), (256, 0))
    optional: ClassVar[Sequence[str]] = ()

    dtype: DType

    @classmethod
    @abstractmethod
    def of(cls, op: Any, fmt: Format, lnc: int) -> Self:
        """Returns the contract for an Op of `kinds`.  Raises UserError for one that it cannot express."""

    @abstractmethod
    def arrays(self, sizes: Sizes, source: Source) -> tuple[Array, ...]:
        """Returns the arguments at these sizes, in their order."""

    @abstractmethod
    def twin(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Returns the Op's values for these arguments, unrounded."""

    def keywords(self) -> Mapping[str, Keyword]:
        """Returns the numbers that the kernel may take by keyword."""
        return {}

    def results(self, taken: Collection[str]) -> int:
        """Returns the number of arrays that a kernel with these optional parameters returns."""
        return 1

    @property
    def each(self) -> float:
        """Rows of the kernel for a row of the Op."""
        return 1.0

    @property
    def least(self) -> int:
        """Rows of a step from which on the kernel is used."""
        return 1

    @property
    def bound(self) -> float:
        """The largest difference that passes, as a share of the largest value."""
        return BOUNDS[self.dtype]

    @property
    def sizes(self) -> dict[str, object]:
        """The sizes and numbers of the Op on a core, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dtype"}

    @property
    def prompts(self) -> bool:
        """True if the kernel computes steps of prompts."""
        return self.steps is not KernelSteps.TOKENS

    @property
    def decodes(self) -> bool:
        """True if the kernel computes decode steps."""
        return self.steps is not KernelSteps.PROMPTS


def refused(name: str, why: str, param: str = "kernels") -> UserError:
    """Returns the error of a kernel that cannot stand for the model's Op; of another field where another
    deployment could have the kernel."""
    return UserError(f"--kernel {name}: {why}", param)


def plain(name: str, op: Op, fields: Iterable[str]) -> None:
    """Raises UserError where one of these fields of an Op is set: the contract has no place for it."""
    for field in fields:
        if getattr(op, field):
            kind = type(op).__name__
            raise refused(name, f"the {kind} of layer {op.layer} has {field}, which kernels are not given")


def divided(name: str, what: str, count: int, lnc: int) -> int:
    """Returns a physical core's share of `count`.  Raises UserError where it is not whole."""
    if count % lnc:
        raise refused(
            name, f"{count} {what} cannot be divided among {lnc} physical cores; use --lnc 1", "lnc"
        )
    return count // lnc


def as_f32(*arrays: Array) -> tuple[F32s, ...]:
    """Returns the arrays in fp32."""
    return tuple(np.asarray(array, np.float32) for array in arrays)


def activated(x: F32s, function: str) -> F32s:
    """Returns an activation function of x, in fp32."""
    match function:
        case "silu":
            found = x / (1 + np.exp(-x))
        case "gelu":
            found = x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2
        case "gelu_tanh":
            found = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
        case "relu":
            found = np.maximum(x, 0)
        case _:
            raise UserError(f"--kernel: kernels cannot be compared with a gate by {function}", "kernels")
    return np.asarray(found, np.float32)
