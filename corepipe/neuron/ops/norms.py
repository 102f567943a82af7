"""Norms over rows, or over the heads of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corepipe.errors import UserError
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops.base import Bindings, NativeProgram, RankContext, SameWidthOp
from corepipe.neuron.ops.costs import Passes
from corepipe.neuron.values import Value, WeightSpec


def _own_groups(gain: WeightSpec | None, groups: int | None, cut: RankContext) -> Mapping[str, Any]:
    """Returns the field `groups` of a norm on a core.  Raises UserError where a core would hold a part of a
    group."""
    if groups is None or gain is None:
        return {}
    width, group = cut.width(gain.axes[0]), gain.shape[0] // groups
    if width % group:
        raise UserError(
            f"--tensor: {gain.name} normalises over each of {groups} groups; use a degree that divides "
            f"{groups}",
            "tensor",
        )
    return {"groups": width // group}


@dataclass(frozen=True, slots=True)
class RMSNorm(SameWidthOp):
    """Root-mean-square norm over each group of `len(gain)` consecutive elements, times the gain.

    With a gain as wide as x this is the layer's norm; with one head's width it is Qwen3's q/k norm.
    `groups`: number of equal parts of the gain's width, each normalised by itself (Mamba-2); None: one part.
    """

    passes = Passes(one=1, two=2)  # times 1 / rms; x squared and summed, times the gain

    x: Value
    gain: WeightSpec
    eps: float
    groups: int | None = None

    def refuses_cut(self) -> str | None:
        axis = self.gain.axes[0]
        whole = axis.is_cut and self.groups is None
        return f"{self.gain.name} normalises over all of {axis.name}" if whole else None

    def own_fields(self, cut: RankContext) -> Mapping[str, Any]:
        """Returns the core's whole groups.  Raises UserError where the cut would split a group."""
        return _own_groups(self.gain, self.groups, cut)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        gain = at.vector(self.gain)
        native.rms_norm(at.buffer(self.x), at.buffer(self.out), gain, self.eps, self.groups or 1)


@dataclass(frozen=True, slots=True)
class L2Norm(SameWidthOp):
    """x / max(|x|, eps): rows of Euclidean length 1."""

    passes = Passes(one=1, two=1)  # times 1 / length; x squared and summed

    x: Value
    eps: float = 1e-12

    def refuses_cut(self) -> str | None:
        what = f"Normalize of layer {self.layer}"
        return f"{what} needs all of {self.x.axis.name}" if self.x.axis.is_cut else None

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.normalize(at.buffer(self.x), at.buffer(self.out), self.eps)


@dataclass(frozen=True, slots=True)
class LayerNorm(SameWidthOp):
    """(x - mean) / sqrt(variance + eps), times the gain, plus the bias, if given.

    It runs over all of x, or over each part of x as wide as the gain, with one head's width (Phi).  `groups`:
    number of equal parts of the gain, each normalised by itself, with a gain per head (Cohere); None: one
    part.
    """

    passes = Passes(one=2, two=1)  # statistics, normalise; times the gain plus the bias

    x: Value
    gain: WeightSpec | None
    bias: WeightSpec | None
    eps: float
    groups: int | None = None

    def refuses_cut(self) -> str | None:
        what = self.gain.name if self.gain is not None else f"LayerNorm of layer {self.layer}"
        axis = self.x.axis if self.gain is None else self.gain.axes[0]
        whole = axis.is_cut and self.groups is None
        return f"{what} normalises over all of {axis.name}" if whole else None

    def own_fields(self, cut: RankContext) -> Mapping[str, Any]:
        """Returns the same as `RMSNorm.own_fields`."""
        return _own_groups(self.gain, self.groups, cut)

    def bound(self, at: Bindings) -> tuple[F32 | None, F32 | None, float]:
        """Returns gain, bias and epsilon, as the native program takes them."""
        gain, bias = (None if spec is None else at.vector(spec) for spec in (self.gain, self.bias))
        return gain, bias, self.eps

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.layer_norm(at.buffer(self.x), at.buffer(self.out), *self.bound(at), self.groups or 1)
