"""Mixtures of experts: what the families' configs say about them, and the block that takes the place of the
feed-forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corepipe.models.config import MAX_FFN, Fields, ModelConfig
from corepipe.models.families.blocks import gated_mlp
from corepipe.models.families.layers import GraphBuilder
from corepipe.neuron.graph import Axis, Value, WeightRole, WeightSpec
from corepipe.neuron.ops import Experts, Function

MAX_EXPERTS = 1 << 12


@dataclass(frozen=True, slots=True)
class MoeConfig(ModelConfig):
    """`sparse` says for each layer whether it has experts; every token takes `top_k` of the `experts`.

    `shared_ffn`: width of what every token takes beside them (0: nothing), `shared_gate`: times a factor of
    the token's own.  `router_bias` and `expert_bias`: biases of the router and of the experts.
    """

    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sparse: tuple[bool, ...] = ()


def expert_counts(fields: Fields, experts: str, top_k: str) -> dict[str, Any]:
    """The number of experts, and how many a token takes, from these keys."""
    count = fields.integer(experts, MAX_EXPERTS)
    return {"experts": count, "top_k": fields.integer(top_k, count)}


def expert_width(fields: Fields, key: str) -> int:
    return fields.integer(key, MAX_FFN)


def experts(b: GraphBuilder, x: Value, prefix: str, config: MoeConfig, gate: str = "gate") -> Value:
    """The routed experts under `prefix`; their matrices are stacked here, whatever the checkpoint does."""
    routing = b.linear(x, f"{prefix}.{gate}", Axis.EXPERTS, config.experts, config.router_bias)
    name, count, ffn, hidden = f"{prefix}.experts", config.experts, config.expert_ffn, x.width
    into = (count, ffn, hidden), (Axis.EXPERTS, Axis.EXPERT_FFN, Axis.HIDDEN)
    back = (count, hidden, ffn), (Axis.EXPERTS, Axis.HIDDEN, Axis.EXPERT_FFN)
    return b.append(
        Experts(
            b.layer,
            b.like(x),
            x,
            routing,
            WeightSpec(f"{name}.gate_proj.weight", *into, WeightRole.MATRIX),
            WeightSpec(f"{name}.up_proj.weight", *into, WeightRole.MATRIX),
            WeightSpec(f"{name}.down_proj.weight", *back, WeightRole.MATRIX),
            config.top_k,
            ffn,
            config.function,
            _biases(name, config, hidden) if config.expert_bias else (),
        )
    )


def _biases(name: str, config: MoeConfig, hidden: int) -> tuple[WeightSpec, ...]:
    middle = (config.experts, config.expert_ffn), (Axis.EXPERTS, Axis.EXPERT_FFN)
    out = (config.experts, hidden), (Axis.EXPERTS, Axis.HIDDEN)
    parts = (("gate_proj", middle), ("up_proj", middle), ("down_proj", out))
    return tuple(WeightSpec(f"{name}.{part}.bias", *shape, WeightRole.VECTOR) for part, shape in parts)


def shared(b: GraphBuilder, x: Value, prefix: str, config: MoeConfig) -> Value:
    """What every token takes: a feed-forward, times the token's own factor where there is one.

    The factor meets the narrow middle instead of the result, which is the same, so that under tensor
    parallelism one all-reduce serves the whole block.
    """
    if not config.shared_gate:
        return gated_mlp(b, x, prefix, axis=Axis.SHARED_FFN, width=config.shared_ffn)
    own = b.linear(x, f"{prefix}_gate", Axis.EXPERTS, 1)
    factor = b.activation(own, Function.SIGMOID)
    gate = b.linear(x, f"{prefix}.gate_proj", Axis.SHARED_FFN, config.shared_ffn)
    up = b.linear(x, f"{prefix}.up_proj", Axis.SHARED_FFN, config.shared_ffn)
    middle = b.scale(b.gated(gate, up), by=factor)
    return b.linear(middle, f"{prefix}.down_proj", Axis.HIDDEN, x.width)


def block(
    b: GraphBuilder, x: Value, prefix: str, config: MoeConfig, shared_name: str = "shared_expert"
) -> Value:
    """The routed experts and what is shared, or the dense feed-forward of a layer without experts."""
    if not config.sparse[b.layer]:
        return gated_mlp(b, x, prefix)
    routed = experts(b, x, prefix, config)
    if not config.shared_ffn:
        return routed
    return b.add(routed, shared(b, x, f"{prefix}.{shared_name}", config))
