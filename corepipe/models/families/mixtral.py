"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from functools import partial

from corepipe.models.config import Fields, without_rope
from corepipe.models.families import llama, mistral, moe
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig
from corepipe.neuron.graph import Format, Graph, Value


def configure(fields: Fields) -> MoeConfig:
    """`intermediate_size` is an expert's."""
    fields = fields if "sliding_window" in fields.values else fields.replace("sliding_window", None)
    config = mistral.configure(without_rope(fields))
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(fields, "num_local_experts", "num_experts_per_tok"),
        expert_ffn=config.ffn_size,
        sparse=(True,) * config.num_layers,
    )


def build(config: MoeConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    return llama.build(config, fmt, max_positions, name, partial(_feed_forward, config))


def _feed_forward(config: MoeConfig, b: GraphBuilder, x: Value) -> Value:
    return moe.block(b, x, f"model.layers.{b.layer}.block_sparse_moe", config)
