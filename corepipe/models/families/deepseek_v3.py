"""DeepSeek-V3 and R1, and V2: attention over latents, and experts after the first layers.

Rotary elements come first in a head here; checkpoints have them last. The layers that predict further tokens
in training (`num_nextn_predict_layers`) are not part of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.models.config import common
from corepipe.models.families import llama, moe
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.models.fields import MAX_HEAD_DIM, MAX_HIDDEN, MAX_LAYERS, Fields
from corepipe.models.weight_map import TensorRows, WeightMap
from corepipe.neuron.axes import Axis, HeadLayout, fixed
from corepipe.neuron.ops import Groups, LatentAttention, Scoring
from corepipe.neuron.values import Value, WeightRole, WeightSpec


@dataclass(frozen=True, slots=True)
class DeepseekConfig(MoeConfig):
    """The config with the sizes of the latents of queries (None: no such latent) and of keys and values, and
    of a head's value.

    `interleaved`: checkpoints rotate pairs of neighbours. `out_bias`: a bias on the matrices that make
    latents, and on the output. `more_layers`: checkpoints have the layers of training.
    """

    query_rank: int | None = None
    latent_rank: int = 0
    value_dim: int = 0
    interleaved: bool = True
    more_layers: bool = False


def configure(fields: Fields) -> DeepseekConfig:
    """Reads the config; a head is `qk_nope_head_dim` latent and `qk_rope_head_dim` rotated elements."""
    rotary = fields.integer("qk_rope_head_dim", MAX_HEAD_DIM)
    if rotary % 2:
        raise fields.error("qk_rope_head_dim", f"({rotary}) must be even for rotary embedding")
    head = fields.integer("qk_nope_head_dim", MAX_HEAD_DIM) + rotary
    heads = fields.integer("num_attention_heads", MAX_HEAD_DIM)
    # the rotated size must be even, the whole head's need not be
    plain = fields.replace("num_key_value_heads", heads).replace("head_dim", rotary)
    fields.refuse("mlp_bias")
    config = replace(common(plain), heads=HeadLayout(heads, heads, head), rotary_dim=rotary)
    config = replace(config, out_bias=fields.flag("attention_bias"))
    width = moe.expert_width(fields, "moe_intermediate_size")
    dense = fields.integer("first_k_dense_replace", MAX_LAYERS, default=0, least=0)
    step = fields.integer("moe_layer_freq", MAX_LAYERS, default=1)
    ranked = fields.has("q_lora_rank")
    counts = moe.expert_counts(fields, "n_routed_experts", "num_experts_per_tok")
    return DeepseekConfig(
        **config.values(),
        **counts,
        **_routing(fields, counts["experts"], counts["top_k"]),
        expert_ffn=width,
        shared_ffn=width * fields.integer("n_shared_experts", moe.MAX_EXPERTS, default=0, least=0),
        sparse=tuple(layer >= dense and layer % step == 0 for layer in range(config.num_layers)),
        query_rank=fields.integer("q_lora_rank", MAX_HIDDEN) if ranked else None,
        latent_rank=fields.integer("kv_lora_rank", MAX_HIDDEN),
        value_dim=fields.integer("v_head_dim", MAX_HEAD_DIM),
        interleaved=fields.flag("rope_interleave", default=True),
        more_layers=fields.integer("num_nextn_predict_layers", MAX_LAYERS, default=0, least=0) > 0,
    )


MAX_FACTOR = 1e3


def _routing(fields: Fields, experts: int, top_k: int) -> Mapping[str, Any]:
    """Reads how a token's experts are chosen and weighted; defaults are those of transformers."""
    if fields.text("model_type") == "deepseek_v2":
        fields.require("scoring_func", ("softmax",), "softmax")
        fields.refuse("norm_topk_prob")  # transformers ignores it, the model's own code does not
        method = fields.require("topk_method", ("greedy", "group_limited_greedy"), "greedy")
        grouped, groups, scoring, factor = method == "group_limited_greedy", (1, 1), Scoring.OF_ALL, 1.0
    else:
        fields.require("scoring_func", ("sigmoid",), "sigmoid")
        fields.require("topk_method", ("noaux_tc",), "noaux_tc")
        shares = fields.flag("norm_topk_prob", default=True)
        scoring = Scoring.SIGMOID_SHARES if shares else Scoring.SIGMOID
        grouped, groups, factor = True, (8, 4), 2.5
    factor = fields.number("routed_scaling_factor", 1e-6, MAX_FACTOR, factor)
    return {
        "scoring": scoring,
        "correction": scoring.by_sigmoid,
        "groups": _groups(fields, Groups(*groups), experts, top_k, scoring) if grouped else None,
        "factor": None if factor == 1 else factor,
    }


def _groups(fields: Fields, default: Groups, experts: int, top_k: int, scoring: Scoring) -> Groups | None:
    """Returns the groups, None where there is a single one."""
    count = fields.integer("n_group", experts, default.number)
    taken = fields.integer("topk_group", count, min(default.taken, count))
    least = 2 if scoring.by_sigmoid and count > 1 else 1
    if experts % count or experts // count < least:
        raise fields.error(
            "n_group", f"({count}) must make equal groups of {experts} experts, {least} or more"
        )
    if top_k > taken * (experts // count):
        raise fields.error(
            "topk_group",
            f"({taken} of {experts // count} experts) has fewer than the {top_k} that a token takes",
        )
    return None if taken == count else Groups(count, taken)


def build(b: GraphBuilder, config: DeepseekConfig) -> None:
    feed_forward = moe.in_layers(config, shared_name="shared_experts")
    llama.build(b, config, feed_forward, partial(_attention, config))


def _attention(config: DeepseekConfig, b: GraphBuilder, x: Value) -> Value:
    prefix, heads = f"model.layers.{b.layer}.self_attn", config.heads
    rotary, bias = config.rotary_dim or 0, config.out_bias
    q = b.rope(_queries(b, x, config, prefix))
    latent = b.linear(x, f"{prefix}.kv_a_proj_with_mqa.latent", fixed("latent", config.latent_rank), bias)
    latent = b.norm(latent, f"{prefix}.kv_a_layernorm")
    key = b.rope(b.linear(x, f"{prefix}.kv_a_proj_with_mqa.rope", fixed("latent", rotary), bias), rotary)
    keys = heads.queries("k_latent_heads", heads.head_dim - rotary)
    values = heads.queries("v_latent_heads", config.value_dim)
    up = partial(_up, prefix, latent.axis)
    return b.append(
        LatentAttention(
            b.layer,
            b.value(values, x.rows),
            q,
            latent,
            key,
            up("k", keys),
            up("v", values),
            heads,
            heads.head_dim**-0.5 * config.rope.scores_factor(),
        )
    )


def _up(prefix: str, latent: Axis, part: str, axis: Axis) -> WeightSpec:
    return WeightSpec(f"{prefix}.kv_b_proj.{part}.weight", (axis, latent), WeightRole.MATRIX)


def _queries(b: GraphBuilder, x: Value, config: DeepseekConfig, prefix: str) -> Value:
    """Appends queries, through a latent of their own or directly."""
    if config.query_rank is None:
        return b.linear(x, f"{prefix}.q_proj", config.heads.queries())
    latent = b.linear(x, f"{prefix}.q_a_proj", fixed("latent", config.query_rank), config.out_bias)
    return b.linear(b.norm(latent, f"{prefix}.q_a_layernorm"), f"{prefix}.q_b_proj", config.heads.queries())


def weights(config: DeepseekConfig) -> WeightMap:
    """Maps each head's query, with the rotated elements last in checkpoints; one tensor has the rows of keys
    and of values for each head, another those of the latent and then of the rotated key."""
    heads, rotary = config.heads.heads, config.rotary_dim or 0
    size, rest, rank = config.heads.head_dim, config.heads.head_dim - rotary, config.latent_rank
    order = np.arange(rotary)
    if config.interleaved:
        order = order.reshape(-1, 2).T.reshape(-1)
    query = _of_heads(heads, size, np.concatenate((rest + order, np.arange(rest))))
    both = rest + config.value_dim
    into, up = "kv_a_proj_with_mqa", "kv_b_proj"
    parts = {
        "q_proj": TensorRows(None, query, heads * size),
        "q_b_proj": TensorRows(None, query, heads * size),
        f"{into}.latent": TensorRows(into, np.arange(rank), rank + rotary),
        f"{into}.rope": TensorRows(into, rank + order, rank + rotary),
        f"{up}.k": TensorRows(up, _of_heads(heads, both, np.arange(rest)), heads * both),
        f"{up}.v": TensorRows(up, _of_heads(heads, both, np.arange(rest, both)), heads * both),
    }
    return replace(moe.weights(config), parts=parts, more_layers=config.more_layers)


def _of_heads(heads: int, size: int, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Returns these rows of each head of `size` rows."""
    return (np.arange(heads)[:, None] * size + rows).reshape(-1)
