"""Qwen1.5-MoE and Qwen2-57B: Qwen2 with a mixture of experts and a gated expert that every token takes."""

from __future__ import annotations

from corepipe.models.config import Fields, without_rope
from corepipe.models.families import moe, qwen2
from corepipe.models.families.moe import MoeConfig
from corepipe.models.families.qwen3_moe import build, sparse_layers

__all__ = ["build", "configure"]


def configure(fields: Fields) -> MoeConfig:
    """`shared_expert_intermediate_size` is the width of what every token takes."""
    config = qwen2.configure(without_rope(fields))
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(fields, "num_experts", "num_experts_per_tok"),
        expert_ffn=moe.expert_width(fields, "moe_intermediate_size"),
        shared_ffn=moe.expert_width(fields, "shared_expert_intermediate_size"),
        shared_gate=True,
        sparse=sparse_layers(fields, config.num_layers),
    )
