"""Qwen3 with a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.families import llama, moe, qwen3
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig, weights
from corepipe.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields

__all__ = ["build", "configure", "sparse_layers", "weights"]


def sparse_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Reads the layers with experts: every `decoder_sparse_step`th, except those in `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", MAX_LAYERS, default=1)
    dense = set(fields.ids("mlp_only_layers"))
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))


def configure(fields: Fields) -> MoeConfig:
    """Reads the config: `moe_intermediate_size` is an expert's, `intermediate_size` a dense layer's."""
    width = moe.expert_width(fields, "moe_intermediate_size")
    experts = (
        "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    )  # since transformers 5
    config = qwen3.described(fields.without("use_sliding_window").defaulting("intermediate_size", width))
    if fields.flag("use_sliding_window"):  # in every layer
        window = fields.integer("sliding_window", MAX_POSITIONS, default=4096)
        config = replace(config, windows=(window,) * config.num_layers)
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(fields, experts, "num_experts_per_tok"),
        expert_ffn=width,
        sparse=sparse_layers(fields, config.num_layers),
        scoring=moe.normalised(fields),
    )


def build(b: GraphBuilder, config: MoeConfig) -> None:
    llama.build(b, config, moe.in_layers(config))
