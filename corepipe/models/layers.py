"""The shared builders: each appends Ops to a Graph under construction and returns the Value they make."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.neuron.graph import (
    Add,
    Attention,
    Axis,
    Embed,
    Format,
    GatedActivation,
    Graph,
    Linear,
    Op,
    RMSNorm,
    Rope,
    Rows,
    SelectRows,
    Value,
    WeightRole,
    WeightSpec,
)

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class GraphBuilder:
    """Collects the Ops of one forward pass.  `layer` labels what is appended next."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.rope_spec = config.rope.spec(config.heads.head_dim)
        self.layer = -1
        self._ops: list[Op] = []

    def finish(self, name: str, fmt: Format, max_positions: int) -> Graph:
        """The Graph of all Ops so far; the last one makes the logits."""
        config = self.config
        return Graph(
            name=name,
            format=fmt,
            ops=tuple(self._ops),
            heads=config.heads,
            num_layers=config.num_layers,
            vocab_size=config.vocab_size,
            max_positions=max_positions,
            tied={HEAD: EMBEDDING} if config.tied else {},
        )

    def _append(self, op: Op) -> Value:
        self._ops.append(op)
        return op.out

    def _value(self, axis: Axis, width: int, rows: Rows = Rows.TOKENS) -> Value:
        return Value(len(self._ops), axis, width, rows)

    def embed(self) -> Value:
        """The embedding rows of the tokens."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        table = WeightSpec(EMBEDDING, shape, (Axis.TOKENS, Axis.HIDDEN), WeightRole.EMBEDDING)
        return self._append(Embed(self.layer, self._value(Axis.HIDDEN, shape[1]), table))

    def norm(self, x: Value, name: str) -> Value:
        """Root-mean-square norm over all of x."""
        gain = WeightSpec(f"{name}.weight", (x.width,), (x.axis,), WeightRole.VECTOR)
        return self._append(
            RMSNorm(self.layer, self._value(x.axis, x.width, x.rows), x, gain, self.config.eps)
        )

    def head_norm(self, x: Value, name: str) -> Value:
        """Root-mean-square norm over each head of x."""
        gain = WeightSpec(f"{name}.weight", (self.config.heads.head_dim,), (Axis.HEAD,), WeightRole.VECTOR)
        return self._append(
            RMSNorm(self.layer, self._value(x.axis, x.width, x.rows), x, gain, self.config.eps)
        )

    def linear(self, x: Value, name: str, axis: Axis, width: int, bias: bool = False) -> Value:
        """x times a matrix [width, x.width], plus a bias."""
        weight = WeightSpec(f"{name}.weight", (width, x.width), (axis, x.axis), WeightRole.MATRIX)
        vector = WeightSpec(f"{name}.bias", (width,), (axis,), WeightRole.VECTOR) if bias else None
        return self._append(Linear(self.layer, self._value(axis, width, x.rows), x, weight, vector))

    def rope(self, x: Value) -> Value:
        """x with each head rotated by its position."""
        out = self._value(x.axis, x.width)
        return self._append(Rope(self.layer, out, x, self.config.heads.head_dim, self.rope_spec))

    def attention(self, q: Value, k: Value, v: Value, window: int | None) -> Value:
        """Causal attention, scaled by 1 / sqrt(head size)."""
        heads = self.config.heads
        out = self._value(Axis.Q_HEADS, q.width)
        return self._append(Attention(self.layer, out, q, k, v, heads, heads.head_dim**-0.5, window))

    def gated(self, gate: Value, up: Value) -> Value:
        """silu(gate) * up."""
        return self._append(
            GatedActivation(self.layer, self._value(gate.axis, gate.width, gate.rows), gate, up)
        )

    def add(self, a: Value, b: Value) -> Value:
        return self._append(Add(self.layer, self._value(a.axis, a.width, a.rows), a, b))

    def select_rows(self, x: Value) -> Value:
        return self._append(SelectRows(self.layer, self._value(x.axis, x.width, Rows.LOGITS), x))
