"""Layouts of experts' weights in checkpoints: a tensor each, a stack of all, or two stacks in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from corepipe.neuron.numerics.int4 import ALL, Stored, stacked, taken

MATRICES = ("gate_proj", "up_proj", "down_proj")
"""The names of an expert's matrices in the graph, in this order."""


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """One layout of a stack of matrices `shape` [experts, N, K], or of biases [experts, N].

    tensors: a tensor for each expert, or one with all of them, possibly as rows one below the other; each has
    the shape `stored`; names begin where the weight's own name ends. first: the first of a matrix's N rows in
    the tensor; step: the distance from one to the next. transposed: the tensor is [experts, K, rows]. beyond:
    the tensor that a checkpoint with more experts would have.
    """

    tensors: tuple[str, ...]
    stored: tuple[int, ...]
    shape: tuple[int, ...]
    first: int = 0
    step: int = 1
    transposed: bool = False
    beyond: str | None = None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Tells whether a tensor of this shape can be read."""
        return shape == self.stored

    def named(self, name: Callable[[str], str]) -> ExpertTensors:
        """Returns the same layout under a checkpoint's tensor names."""
        beyond = None if self.beyond is None else name(self.beyond)
        return replace(self, tensors=tuple(map(name, self.tensors)), beyond=beyond)

    def made(self, read: Callable[..., Stored], experts: slice) -> Stored:
        """Reads some experts' matrices: floats [experts, N, K], or integers with the matrices one below the
        other.

        read: reads rows of a tensor; in a tensor with all experts these are whole matrices.
        """
        if len(self.tensors) > 1:
            return stacked([read(tensor) for tensor in self.tensors[experts]])
        below = len(self.stored) < len(self.shape)
        each = self.stored[0] // self.shape[0] if below else 1
        whole, rows = read(self.tensors[0], _times(experts, each)), self.step * np.arange(self.shape[1])
        if isinstance(whole, np.ndarray):
            matrices = whole.reshape(-1, each, self.stored[1]) if below else whole
            matrices = matrices.swapaxes(1, 2) if self.transposed else matrices
            return np.ascontiguousarray(matrices[:, self.first :: self.step][:, : len(rows)])
        if self.transposed:
            raise ValueError("integers of experts have scales along K")
        starts = np.arange(self.first, len(whole.values), each if below else self.stored[1])
        return taken(whole, (starts[:, None] + rows).reshape(-1))


def _times(experts: slice, each: int) -> slice:
    """Returns the rows of some matrices that stand one below the other, `each` rows high."""
    return experts if experts == ALL else slice(experts.start * each, experts.stop * each)


Ways = Mapping[str, tuple[ExpertTensors, ...]]
"""Layouts by the end of a weight's name, the most likely first."""


def ways(
    experts: int,
    ffn: int,
    hidden: int,
    names: Sequence[str] = MATRICES,
    fused: Sequence[str] = ("experts.gate_up_proj", "experts.down_proj"),
) -> Ways:
    """Returns the layouts of gate, up and down projections of `experts` experts.

    names: of the three matrices of one expert, or of their stacks, as in GGUF files. fused: the tensor with
    all gates and ups, and the one with all downs.
    """
    both, back = fused
    into, out = (experts, ffn, hidden), (experts, hidden, ffn)
    gate_up = ExpertTensors((both,), (experts, 2 * ffn, hidden), into)
    found = {}
    for own, name, shape, stack in (
        (MATRICES[0], names[0], into, gate_up),
        (MATRICES[1], names[1], into, replace(gate_up, first=ffn)),
        (MATRICES[2], names[2], out, ExpertTensors((back,), out, out)),
    ):
        each = [f"experts.{expert}.{name}.weight" for expert in range(experts + 1)]
        found[f"experts.{own}.weight"] = (
            ExpertTensors(tuple(each[:-1]), shape[1:], shape, beyond=each[-1]),
            _apart(f"experts.{name}.weight", shape),
            stack,
        )
    return found


def turned(experts: int, ffn: int, hidden: int) -> Ways:
    """Returns Llama 4's layouts: as `ways`, but tensors with all experts are [experts, in, out]."""
    both, back = (experts, hidden, 2 * ffn), (experts, ffn, hidden)
    stacks = {
        MATRICES[0]: ExpertTensors(("experts.gate_up_proj",), both, (experts, ffn, hidden), transposed=True),
        MATRICES[1]: ExpertTensors(
            ("experts.gate_up_proj",), both, (experts, ffn, hidden), first=ffn, transposed=True
        ),
        MATRICES[2]: ExpertTensors(("experts.down_proj",), back, (experts, hidden, ffn), transposed=True),
    }
    return {
        f"experts.{own}.weight": (*ways(experts, ffn, hidden)[f"experts.{own}.weight"][:-1], stacks[own])
        for own in MATRICES
    }


def interleaved(experts: int, ffn: int, hidden: int) -> Ways:
    """Returns gpt-oss's layouts: rows of gate and up alternate in one tensor, with biases; or separate
    stacks.

    A tensor of floats is [experts, K, N]; in MXFP4 `..._blocks` is [experts, N, K], as `checkpoints.mxfp4`
    returns it.
    """
    into, out = (experts, ffn, hidden), (experts, hidden, ffn)
    stacks = {
        MATRICES[0]: ("experts.gate_up_proj", (experts, 2 * ffn, hidden), into, 0, 2),
        MATRICES[1]: ("experts.gate_up_proj", (experts, 2 * ffn, hidden), into, 1, 2),
        MATRICES[2]: ("experts.down_proj", out, out, 0, 1),
    }
    found: dict[str, tuple[ExpertTensors, ...]] = {}
    for own, (name, stored, shape, first, step) in stacks.items():
        count, rows, width = stored
        floats = ExpertTensors((name,), (count, width, rows), shape, first, step, transposed=True)
        found[f"experts.{own}.weight"] = (
            ExpertTensors((f"{name}_blocks",), stored, shape, first, step),
            _apart(f"experts.{own}.weight", shape),
            floats,
        )
        biases = ExpertTensors((f"{name}_bias",), stored[:2], shape[:2], first, step)
        found[f"experts.{own}.bias"] = (biases, _apart(f"experts.{own}.bias", shape[:2]))
    return found


def _apart(name: str, shape: tuple[int, ...]) -> ExpertTensors:
    """Returns the layout of a stack with a tensor of its own, as in GGUF files."""
    return ExpertTensors((name,), shape, shape)


def below(experts: int, ffn: int, hidden: int, names: Sequence[str]) -> Ways:
    """Returns DBRX's layouts: each matrix has all experts' [ffn, hidden] one below the other; or stacks."""
    into, out, stored = (experts, ffn, hidden), (experts, hidden, ffn), (experts * ffn, hidden)
    shapes = zip(MATRICES, names, (into, into, out), strict=True)
    return {
        f"experts.{own}.weight": (
            ExpertTensors((name,), stored, shape, transposed=own == MATRICES[2]),
            _apart(f"{name}.weight", shape),
        )
        for own, name, shape in shapes
    }
