"""Where checkpoints keep what experts have: by itself, in stacks, or two stacks in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from corepipe.neuron.numerics.int4 import ALL, Stored, stacked, taken

MATRICES = ("gate_proj", "up_proj", "down_proj")
"""As the graph calls them, in this order."""


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """One way to keep a stack of matrices `shape` [experts, N, K], or of biases [experts, N].

    tensors: one for each, or one that has them all, maybe one below the other, of the shape `stored`; names
    from where the weight's own end begins.  first: of each matrix of one tensor, the row at which the N
    begin; step: from each of them to the next.  transposed: the tensor has [experts, K, rows].  beyond: what
    a checkpoint of more experts has.
    """

    tensors: tuple[str, ...]
    stored: tuple[int, ...]
    shape: tuple[int, ...]
    first: int = 0
    step: int = 1
    transposed: bool = False
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
    """Rows of matrices that stand one below the other, so many each."""
    return experts if experts == ALL else slice(experts.start * each, experts.stop * each)


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
            _apart(f"experts.{name}.weight", shape),
            stack,
        )
    return found


def turned(experts: int, ffn: int, hidden: int) -> Ways:
    """How Llama 4 keeps them: as `ways`, but what has all experts is [experts, in, out]."""
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
    """How gpt-oss keeps them: rows of gate and up take turns, and have biases; or apart.

    As floats a tensor has [experts, K, N]; in MXFP4 `..._blocks` has [experts, N, K], as
    `checkpoints.mxfp4` gives it.
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
    """A stack that is a tensor of its own, as GGUF files have them."""
    return ExpertTensors((name,), shape, shape)


def below(experts: int, ffn: int, hidden: int, names: Sequence[str]) -> Ways:
    """How DBRX keeps them: of each matrix all experts' [ffn, hidden], one below the other; or stacks."""
    into, out, stored = (experts, ffn, hidden), (experts, hidden, ffn), (experts * ffn, hidden)
    shapes = zip(MATRICES, names, (into, into, out), strict=True)
    return {
        f"experts.{own}.weight": (
            ExpertTensors((name,), stored, shape, transposed=own == MATRICES[2]),
            _apart(f"{name}.weight", shape),
        )
        for own, name, shape in shapes
    }
