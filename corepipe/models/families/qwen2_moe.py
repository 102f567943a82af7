"""Qwen1.5-MoE and Qwen2-57B: Qwen2 with a mixture of experts and a gated expert shared by every token."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, sliding_windows
from corepipe.models.families import moe, qwen2
from corepipe.models.families.moe import MoeConfig, weights
from corepipe.models.families.qwen3_moe import build, sparse_layers
from corepipe.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields

__all__ = ["build", "configure", "weights"]


def configure(fields: Fields) -> MoeConfig:
    """Reads the config; `shared_expert_intermediate_size` is the width of the shared expert."""
    config = qwen2.configure(fields.without("use_sliding_window"))
    config = replace(config, qkv_bias=fields.flag("qkv_bias", default=True), windows=_windows(fields, config))
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(fields, "num_experts", "num_experts_per_tok"),
        expert_ffn=moe.expert_width(fields, "moe_intermediate_size"),
        shared_ffn=moe.expert_width(fields, "shared_expert_intermediate_size"),
        shared_gate=True,
        sparse=sparse_layers(fields, config.num_layers),
        scoring=moe.normalised(fields),
    )


def _windows(fields: Fields, config: ModelConfig) -> tuple[int | None, ...]:
    """Returns the windows: `use_sliding_window` gives every other of the first `max_window_layers` one."""
    if not fields.flag("use_sliding_window"):
        return config.windows
    layers = config.num_layers
    window = fields.integer("sliding_window", MAX_POSITIONS, default=4096)
    if fields.has("layer_types"):
        return sliding_windows(fields, window, 0, layers)
    end = fields.integer("max_window_layers", MAX_LAYERS, default=28, least=0)
    return tuple(window if layer < end and layer % 2 == 0 else None for layer in range(layers))
