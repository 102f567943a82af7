"""StableLM: Llama with LayerNorm and rotary positions on a quarter of each head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import Fields, ModelConfig, Norm, common
from corepipe.models.families.llama import build

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    """`use_qkv_bias` puts biases on q, k and v.  Raises UserError for the variant of the 12b model."""
    fields.refuse("qk_layernorm", "use_parallel_residual")
    renamed = fields.renamed({"rms_norm_eps": "layer_norm_eps"}).defaulting("rms_norm_eps", 1e-5)
    config = common(renamed, rotary_share=0.25)
    return replace(config, qkv_bias=fields.flag("use_qkv_bias"), norm=Norm.LAYER)
