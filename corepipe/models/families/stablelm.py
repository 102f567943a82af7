"""StableLM: Llama with LayerNorm and rotary positions on a quarter of each head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import Fields, ModelConfig, Norm, common, rotary_dim, without_rope
from corepipe.models.families.llama import build

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    """`use_qkv_bias` puts biases on q, k and v.  Raises UserError for the variant of the 12b model."""
    for key in ("qk_layernorm", "use_parallel_residual"):
        if fields.flag(key):
            raise fields.error(key, "is not supported")
    config = common(without_rope(fields.renamed({"rms_norm_eps": "layer_norm_eps"})))
    rotary = rotary_dim(fields, 0.25)
    return replace(config, qkv_bias=fields.flag("use_qkv_bias"), rotary_dim=rotary, norm=Norm.LAYER)
