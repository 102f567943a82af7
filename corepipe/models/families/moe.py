"""Mixtures of experts: the keys of the families' configs, and the block that replaces the feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corepipe.models.config import ModelConfig
from corepipe.models.expert_weights import MATRICES, ways
from corepipe.models.families.blocks import gated_mlp
from corepipe.models.families.layers import GraphBuilder, vector
from corepipe.models.families.llama import FeedForward
from corepipe.models.fields import MAX_FFN, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.axes import Axis, columns, fixed
from corepipe.neuron.axes import experts as stack_of
from corepipe.neuron.ops import Experts, Function, Groups, Scoring
from corepipe.neuron.values import Value, WeightRole, WeightSpec

MAX_EXPERTS = 1 << 12


@dataclass(frozen=True, slots=True)
class MoeConfig(ModelConfig):
    """`sparse`: for each layer, whether it has experts; every token takes `top_k` of the `experts`.

    `shared_ffn`: width of the feed-forward of every token beside them (0: none), `shared_gate`: it is
    multiplied by a factor of the token's own. `router_bias` and `expert_bias`: biases of the router and of
    the experts. `scoring`, `nearness` (for `of_near`), `correction` (for sigmoids), `groups` of experts and
    `factor` of their weights: as `Experts` describes.
    """

    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sparse: tuple[bool, ...] = ()
    scoring: Scoring = Scoring.OF_ALL
    nearness: float | None = None
    correction: bool = False
    groups: Groups | None = None
    factor: float | None = None


def expert_counts(fields: Fields, experts: str, top_k: str) -> dict[str, Any]:
    """Reads the number of experts, and how many a token takes, from these keys."""
    count = fields.integer(experts, MAX_EXPERTS)
    return {"experts": count, "top_k": fields.integer(top_k, count)}


def normalised(fields: Fields) -> Scoring:
    """Returns whether the weights of a token's experts sum to 1, by `norm_topk_prob`."""
    return Scoring.OF_CHOSEN if fields.flag("norm_topk_prob") else Scoring.OF_ALL


def in_every_layer(
    fields: Fields,
    config: ModelConfig,
    scoring: Scoring = Scoring.OF_CHOSEN,
    experts: str = "num_local_experts",
    biased: bool = False,
) -> MoeConfig:
    """Adds experts to every layer of a config with an expert's `intermediate_size`; `biased`: with biases."""
    return MoeConfig(
        **config.values(),
        **expert_counts(fields, experts, "num_experts_per_tok"),
        expert_ffn=config.ffn_size,
        sparse=(True,) * config.num_layers,
        scoring=scoring,
        router_bias=biased,
        expert_bias=biased,
    )


def expert_width(fields: Fields, key: str) -> int:
    return fields.integer(key, MAX_FFN)


def experts(b: GraphBuilder, x: Value, prefix: str, config: MoeConfig, gate: str = "gate") -> Value:
    """Appends the routed experts under `prefix`; their matrices are stacked here in any case."""
    count, middle = stack_of(config.experts), columns("expert_ffn", config.expert_ffn)
    scores = fixed("experts", config.experts)
    routing = b.linear(x, f"{prefix}.{gate}", scores, config.router_bias)
    name, into, back = f"{prefix}.experts", (count, middle, x.axis), (count, x.axis, middle)
    return b.append(
        Experts(
            b.layer,
            b.like(x),
            x,
            routing,
            WeightSpec(f"{name}.gate_proj.weight", into, WeightRole.MATRIX),
            WeightSpec(f"{name}.up_proj.weight", into, WeightRole.MATRIX),
            WeightSpec(f"{name}.down_proj.weight", back, WeightRole.MATRIX),
            config.top_k,
            config.expert_ffn,
            config.function,
            _biases(name, (count, middle), (count, x.axis)) if config.expert_bias else (),
            config.scoring,
            config.nearness,
            vector(f"{prefix}.{gate}.e_score_correction_bias", scores) if config.correction else None,
            config.groups,
            config.factor,
        )
    )


def _biases(name: str, middle: tuple[Axis, ...], out: tuple[Axis, ...]) -> tuple[WeightSpec, ...]:
    parts = (("gate_proj", middle), ("up_proj", middle), ("down_proj", out))
    return tuple(WeightSpec(f"{name}.{part}.bias", axes, WeightRole.VECTOR) for part, axes in parts)


def shared(b: GraphBuilder, x: Value, prefix: str, config: MoeConfig) -> Value:
    """Appends the feed-forward of every token, times the token's own factor where there is one.

    The factor multiplies the narrow middle instead of the result, which is the same, so that under tensor
    parallelism one all-reduce serves the whole block.
    """
    axis = columns("shared_ffn", config.shared_ffn)
    if not config.shared_gate:
        return gated_mlp(b, x, prefix, axis=axis)
    own = b.linear(x, f"{prefix}_gate", fixed("experts", 1))
    factor = b.activation(own, Function.SIGMOID)
    gate = b.linear(x, f"{prefix}.gate_proj", axis)
    up = b.linear(x, f"{prefix}.up_proj", axis)
    middle = b.scale(b.gated(gate, up), by=factor)
    return b.linear(middle, f"{prefix}.down_proj", x.axis)


def block(
    b: GraphBuilder, x: Value, prefix: str, config: MoeConfig, shared_name: str = "shared_expert"
) -> Value:
    """Appends routed and shared experts, or the dense feed-forward of a layer without experts."""
    if not config.sparse[b.layer]:
        return gated_mlp(b, x, prefix)
    routed = experts(b, x, prefix, config)
    if not config.shared_ffn:
        return routed
    return b.add(routed, shared(b, x, f"{prefix}.{shared_name}", config))


def in_layers(config: MoeConfig, name: str = "mlp", shared_name: str = "shared_expert") -> FeedForward:
    """Returns the function that appends a layer's `block`, which is called `name`."""
    return lambda b, x: block(b, x, f"model.layers.{b.layer}.{name}", config, shared_name)


def weights(
    config: MoeConfig, names: Sequence[str] = MATRICES, spellings: tuple[tuple[str, str], ...] = ()
) -> WeightMap:
    """Maps experts stored one by one, whose matrices have these `names`, or stacked."""
    kept = ways(config.experts, config.expert_ffn, config.hidden_size, names)
    return WeightMap(spellings=spellings, experts=kept)
