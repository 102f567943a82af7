"""Where checkpoints keep the matrices of experts: by themselves, in stacks, or two stacks in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from corepipe.neuron.int4 import Stored, stacked, taken

MATRICES = ("gate_proj", "up_proj", "down_proj")
"""As the graph calls them, in this order."""


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """One way to keep a stack of matrices `shape` [experts, N, K].

    tensors: one that has them all, or one for each, of the shape `stored`; names from where the weight's own
    end begins.  first: of each matrix of one tensor, the row at which the N begin.  beyond: what a checkpoint
    of more experts has.
    """

    tensors: tuple[str, ...]
    stored: tuple[int, ...]
    shape: tuple[int, int, int]
    first: int = 0
    beyond: str | None = None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape can be read."""
        return shape == self.stored

    def named(self, name: Callable[[str], str]) -> ExpertTensors:
        """The same with the names that a checkpoint has."""
        beyond = None if self.beyond is None else name(self.beyond)
        return replace(self, tensors=tuple(map(name, self.tensors)), beyond=beyond)

    def made(self, read: Callable[..., Stored], experts: slice) -> Stored:
        """Some experts' matrices: floats [experts, N, K], or integers one below the other.

        read: rows of a tensor, of one that has all experts whole matrices.
        """
        if len(self.stored) < len(self.shape):
            return stacked([read(tensor) for tensor in self.tensors[experts]])
        whole, rows, stored = read(self.tensors[0], experts), self.shape[1], self.stored[1]
        if stored == rows:
            return whole
        if isinstance(whole, np.ndarray):
            return np.ascontiguousarray(whole[:, self.first : self.first + rows])
        starts = np.arange(self.first, len(whole.values), stored)
        return taken(whole, (starts[:, None] + np.arange(rows)).reshape(-1))


Ways = Mapping[str, tuple[ExpertTensors, ...]]
"""By the end of a weight's name, the likeliest way first."""


def ways(
    experts: int,
    ffn: int,
    hidden: int,
    names: Sequence[str] = MATRICES,
    fused: Sequence[str] = ("experts.gate_up_proj", "experts.down_proj"),
) -> Ways:
    """How gate, up and down of so many experts may be kept.

    names: of the three, of one expert, or of stacks of them, as GGUF files have.  fused: tensors of the first
    two, and of the third, of all experts.
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
            ExpertTensors((f"experts.{name}.weight",), shape, shape),
            stack,
        )
    return found
