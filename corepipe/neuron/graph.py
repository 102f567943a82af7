"""The description of a model's forward pass, which the executors and the cost model read.

A `Graph` is a list of `Op`s over `Value`s (activations) and `WeightSpec`s.  It also declares its inputs, its
outputs and its sets of rows.  Every width is an *axis*, which says how tensor parallelism may cut it: the
compiler cuts axes and never knows an architecture.  A Graph holds weight specs only; binding weights is a
separate step, so that a 70B model can be planned for without its weights.

Rounding: every Op computes in fp32 from its stored inputs and rounds each result to the format's `compute`
dtype when it stores it.  A Linear first converts its input to the format's `activations` dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corepipe.neuron.axes import AxisKind
from corepipe.neuron.formats import Format
from corepipe.neuron.values import (
    TOKENS,
    WANTED,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    RowSet,
    StateKind,
    StateSpec,
    Value,
    WeightSpec,
)

if TYPE_CHECKING:  # an Op is made of the classes of this module
    from corepipe.neuron.ops.base import Op


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole forward pass, from its `inputs` to its `outputs`.

    outputs: a run returns the first unless another is requested; all are made in the last layer or after it.
    rows: the sets of rows that the Ops' values have.
    causal: the model generates one token after another; otherwise it reads its input in one step and keeps no
    state.
    """

    name: str
    format: Format
    ops: tuple[Op, ...]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    num_layers: int
    vocab_size: int
    max_positions: int
    tied: dict[str, str] = field(default_factory=dict)
    """Weight name -> the checkpoint's tensor that it is read from (a tied head reads the embedding)."""
    causal: bool = True
    rows: tuple[RowSet, ...] = (TOKENS, WANTED)

    @property
    def logits(self) -> Value:
        """The value that tokens are sampled from.  Raises ValueError where the graph has no logits."""
        for output in self.outputs:
            if output.kind is OutputKind.LOGITS:
                return output.value
        raise ValueError(f"{self.name}: gives no logits")

    @property
    def attention_heads(self) -> int:
        """Query heads of the Op with the fewest: an upper bound on the number of tensor ranks."""
        layouts = (op.head_layout for op in self.ops)
        return min((layout.heads for layout in layouts if layout is not None), default=1)

    @property
    def experts(self) -> int:
        """Experts of the mixture with the fewest: an upper bound on the cores of `--expert` (0: no
        mixture)."""
        axes = (spec.axes[0] for op in self.ops for spec in op.weights)
        return min((axis.width for axis in axes if axis.kind is AxisKind.EXPERTS), default=0)

    @property
    def is_decoder(self) -> bool:
        """True for a model that generates one token after another and reads only tokens, as served models
        do."""
        return self.causal and self.inputs == (GraphInput(InputKind.TOKENS, TOKENS),)

    @property
    def generates(self) -> bool:
        """True if the first output is the logits of the next token."""
        return self.causal and self.outputs[0].kind is OutputKind.LOGITS

    @property
    def is_recurrent(self) -> bool:
        """True if an Op keeps a state per sequence."""
        return any(state.kind is StateKind.SEQUENCE for state in self.states())

    @property
    def is_hybrid(self) -> bool:
        """True if Ops keep a state per sequence and also keys and values per token."""
        return self.is_recurrent and any(state.kind is StateKind.TOKENS for state in self.states())

    def refusal(self) -> str | None:
        """Names the first Op that no executor computes in the graph's format, and why (None: all are
        computed)."""
        return first_refusal(self.ops, self.format)

    def states(self) -> Iterator[StateSpec]:
        """Yields the state that each Op keeps of a sequence, for the Ops that keep any."""
        for op in self.ops:
            if (state := op.state) is not None:
                yield state

    def weights(self) -> Iterator[WeightSpec]:
        """Yields each weight once, in order of first use."""
        seen: set[str] = set()
        for op in self.ops:
            for spec in op.weights:
                if spec.name not in seen:
                    seen.add(spec.name)
                    yield spec


def first_refusal(ops: Iterable[Op], fmt: Format) -> str | None:
    """Names the first Op that no executor computes in a format, and why (None: all are computed)."""
    for op in ops:
        if (reason := op.refuses(fmt)) is not None:
            return f"{type(op).__name__} of layer {op.layer} {reason}"
    return None
