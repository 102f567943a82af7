"""DeepSeek-V3 and R1, and V2: attention over latents, and experts after the first layers.

Rotary elements come first in a head here; that is another order of the columns, and the same time.  The
layers that predict further tokens in training (`num_nextn_predict_layers`) are not part of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from corepipe.models.config import MAX_HEAD_DIM, MAX_HIDDEN, MAX_LAYERS, Fields, common, without_rope
from corepipe.models.families import moe
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.neuron.graph import (
    Axis,
    Format,
    Graph,
    HeadLayout,
    Value,
    WeightRole,
    WeightSpec,
    fixed,
    hidden,
)
from corepipe.neuron.ops import LatentAttention


@dataclass(frozen=True, slots=True)
class DeepseekConfig(MoeConfig):
    """Sizes of the latents of queries (None: no such) and of keys and values, and of a head's value."""

    query_rank: int | None = None
    latent_rank: int = 0
    value_dim: int = 0


def configure(fields: Fields) -> DeepseekConfig:
    """A head is `qk_nope_head_dim` elements from the latent and `qk_rope_head_dim` rotated ones."""
    rotary = fields.integer("qk_rope_head_dim", MAX_HEAD_DIM)
    head = fields.integer("qk_nope_head_dim", MAX_HEAD_DIM) + rotary
    heads = fields.integer("num_attention_heads", MAX_HEAD_DIM)
    plain = without_rope(fields).replace("num_key_value_heads", heads).replace("head_dim", head)
    config = replace(common(plain), heads=HeadLayout(heads, heads, head), rotary_dim=rotary)
    width = moe.expert_width(fields, "moe_intermediate_size")
    dense = fields.integer("first_k_dense_replace", MAX_LAYERS, default=0, least=0)
    step = fields.integer("moe_layer_freq", MAX_LAYERS, default=1)
    ranked = fields.has("q_lora_rank")
    return DeepseekConfig(
        **config.values(),
        **moe.expert_counts(fields, "n_routed_experts", "num_experts_per_tok"),
        expert_ffn=width,
        shared_ffn=width * fields.integer("n_shared_experts", moe.MAX_EXPERTS, default=0, least=0),
        sparse=tuple(layer >= dense and layer % step == 0 for layer in range(config.num_layers)),
        query_rank=fields.integer("q_lora_rank", MAX_HIDDEN) if ranked else None,
        latent_rank=fields.integer("kv_lora_rank", MAX_HIDDEN),
        value_dim=fields.integer("v_head_dim", MAX_HEAD_DIM),
    )


def build(config: DeepseekConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended = _attention(b, b.norm(x, f"{block}.input_layernorm"), config)
        attended, x = b.only_wanted(attended, x)
        x = b.add(x, b.linear(attended, f"{block}.self_attn.o_proj", hidden(config.hidden_size)))
        normed = b.norm(x, f"{block}.post_attention_layernorm")
        x = b.add(x, moe.block(b, normed, f"{block}.mlp", config, "shared_experts"))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)


def _attention(b: GraphBuilder, x: Value, config: DeepseekConfig) -> Value:
    prefix, heads = f"model.layers.{b.layer}.self_attn", config.heads
    rotary = config.rotary_dim or 0
    q = b.rope(_queries(b, x, config, prefix))
    latent = b.linear(x, f"{prefix}.kv_a_proj_with_mqa.latent", fixed("latent", config.latent_rank))
    latent = b.norm(latent, f"{prefix}.kv_a_layernorm")
    key = b.rope(b.linear(x, f"{prefix}.kv_a_proj_with_mqa.rope", fixed("latent", rotary)), rotary)
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
            heads.head_dim**-0.5,
        )
    )


def _up(prefix: str, latent: Axis, part: str, axis: Axis) -> WeightSpec:
    return WeightSpec(f"{prefix}.kv_b_proj.{part}.weight", (axis, latent), WeightRole.MATRIX)


def _queries(b: GraphBuilder, x: Value, config: DeepseekConfig, prefix: str) -> Value:
    """Through a latent of their own, or straight."""
    if config.query_rank is None:
        return b.linear(x, f"{prefix}.q_proj", config.heads.queries())
    latent = b.linear(x, f"{prefix}.q_a_proj", fixed("latent", config.query_rank))
    return b.linear(b.norm(latent, f"{prefix}.q_a_layernorm"), f"{prefix}.q_b_proj", config.heads.queries())
