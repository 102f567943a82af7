"""The one description of a model's forward pass, read by the executor and by the cost model.

A `Graph` is a list of `Op`s over `Value`s (activations) and `WeightSpec`s, and says what it is: what it
reads, the sets of rows that it has, what it gives.  Every width is an *axis*, which says how tensor
parallelism may cut it: the compiler cuts axes, never knowing an architecture.  A Graph holds weight specs
only; binding weights is a separate step, so that a 70B model can be planned for without its weights.

Rounding: every Op computes in fp32 from its stored inputs and rounds each result to the format's
`compute` dtype when it stores it.  A Linear first converts its input to the format's `activations`
dtype.  `corepipe.neuron.numerics.arithmetic` is the executable definition.
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

if TYPE_CHECKING:  # an Op is made of what is here
    from corepipe.neuron.ops.base import Op


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole forward pass, from its `inputs` to its `outputs`.

    outputs: the first is what a run returns unless it is asked for another; all are made in the last layer
    or after it.  rows: the sets of rows that the Ops' values have.
    causal: it generates token after token; otherwise it reads its input in one step and keeps nothing.
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
    """Weight name -> the checkpoint's tensor it is read from (a tied head reads the embedding)."""
    causal: bool = True
    rows: tuple[RowSet, ...] = (TOKENS, WANTED)

    @property
    def logits(self) -> Value:
        """What tokens are drawn from.  Raises ValueError where there is no such output."""
        for output in self.outputs:
            if output.kind is OutputKind.LOGITS:
                return output.value
        raise ValueError(f"{self.name}: gives no logits")

    @property
    def attention_heads(self) -> int:
        """Query heads of the Op that has fewest: tensor parallelism has no more ranks."""
        layouts = (op.head_layout for op in self.ops)
        return min((layout.heads for layout in layouts if layout is not None), default=1)

    @property
    def experts(self) -> int:
        """Experts of the mixture that has fewest: `--expert` divides them among no more cores (0: none)."""
        axes = (spec.axes[0] for op in self.ops for spec in op.weights)
        return min((axis.width for axis in axes if axis.kind is AxisKind.EXPERTS), default=0)

    @property
    def is_decoder(self) -> bool:
        """Whether it generates token after token from tokens alone, as what is served does."""
        return self.causal and self.inputs == (GraphInput(InputKind.TOKENS, TOKENS),)

    @property
    def generates(self) -> bool:
        """Whether it gives the logits of the next token."""
        return self.causal and self.outputs[0].kind is OutputKind.LOGITS

    @property
    def is_recurrent(self) -> bool:
        """Whether it keeps a state for each sequence."""
        return any(state.kind is StateKind.SEQUENCE for state in self.states())

    @property
    def is_hybrid(self) -> bool:
        """Whether it keeps a state for each sequence, and keys and values for each token, too."""
        return self.is_recurrent and any(state.kind is StateKind.TOKENS for state in self.states())

    def refusal(self) -> str | None:
        """The first Op that the executors do not compute in the graph's format, and why (None: all are)."""
        return first_refusal(self.ops, self.format)

    def states(self) -> Iterator[StateSpec]:
        """What the Ops keep of a sequence."""
        for op in self.ops:
            if (state := op.state) is not None:
                yield state

    def weights(self) -> Iterator[WeightSpec]:
        """Each weight once, in order of first use."""
        seen: set[str] = set()
        for op in self.ops:
            for spec in op.weights:
                if spec.name not in seen:
                    seen.add(spec.name)
                    yield spec


def first_refusal(ops: Iterable[Op], fmt: Format) -> str | None:
    """The first Op that the executors do not compute in a format, and why (None: they compute all)."""
    for op in ops:
        if (reason := op.refuses(fmt)) is not None:
            return f"{type(op).__name__} of layer {op.layer} {reason}"
    return None
