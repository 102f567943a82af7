"""Command-R: LayerNorm without bias, one norm for both blocks side by side, a tied head with a scale."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import Fields, ModelConfig, Norm, common
from corepipe.models.families.blocks import gated_mlp, output
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.llama import attention
from corepipe.models.weight_map import WeightMap, rotated_pairs
from corepipe.neuron.graph import Format, Graph

ROPE_THETA = 500000.0
"""Where a config does not say it, as in transformers."""


@dataclass(frozen=True, slots=True)
class CohereConfig(ModelConfig):
    """`logit_scale` multiplies the logits."""

    logit_scale: float = 1.0


def configure(fields: Fields) -> CohereConfig:
    """Raises UserError for the norms over queries and keys of the plus model."""
    fields.refuse("use_qk_norm")
    renamed = fields.renamed({"rms_norm_eps": "layer_norm_eps"}).defaulting("rms_norm_eps", 1e-5)
    renamed = renamed.defaulting("tie_word_embeddings", value=True).defaulting("rope_theta", ROPE_THETA)
    bias = fields.flag("attention_bias")
    config = replace(common(renamed), norm=Norm.LAYER_NO_BIAS, qkv_bias=bias, out_bias=bias)
    scale = fields.number("logit_scale", 1e-6, 1e6, 0.0625)
    return CohereConfig(**config.values(), logit_scale=scale)


def weights(config: CohereConfig) -> WeightMap:
    return WeightMap(parts=rotated_pairs(config.heads))


def build(config: CohereConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        normed = b.norm(x, f"model.layers.{layer}.input_layernorm")
        attended, normed, x = b.only_wanted(attention(b, normed), normed, x)
        attended = output(b, attended, f"model.layers.{layer}.self_attn.o_proj")
        x = b.add(x, b.add(attended, gated_mlp(b, normed, f"model.layers.{layer}.mlp")))
    b.scale(b.head(b.norm(x, "model.norm")), config.logit_scale)
    return b.finish(name, fmt, max_positions)
