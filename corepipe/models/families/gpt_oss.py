"""gpt-oss: experts with biases, attention with sinks, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from corepipe.models.config import common
from corepipe.models.expert_weights import interleaved
from corepipe.models.families import llama, moe
from corepipe.models.families.layers import GraphBuilder, by_head
from corepipe.models.families.moe import MoeConfig
from corepipe.models.families.windows import alternating
from corepipe.models.fields import Fields
from corepipe.models.weight_map import Stacked, WeightMap
from corepipe.neuron.formats import SWISH_GAIN, SWISH_LIMIT, Function
from corepipe.neuron.values import Value

ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The default scaling (transformers, GptOssConfig)."""


def configure(fields: Fields) -> MoeConfig:
    """Reads the config: `intermediate_size` is an expert's; even layers have the window by default."""
    for key, constant in (("swiglu_alpha", SWISH_GAIN), ("swiglu_limit", SWISH_LIMIT)):
        if fields.number(key, 0.0, 1e6, constant) != constant:
            raise fields.error(key, f"other than {constant:g} is not supported")
    fields = fields.defaulting("head_dim", 64).defaulting("rms_norm_eps", 1e-5)
    if not fields.has("rope_scaling"):
        fields = fields.defaulting("rope_parameters", ROPE)
    biased = fields.flag("attention_bias", default=True)
    config = common(fields.defaulting("rope_theta", 150000.0))
    config = replace(config, qkv_bias=biased, out_bias=biased, function=Function.CLAMPED_SWISH)
    windows = alternating(fields, config.num_layers, 128, 2)
    return moe.in_every_layer(fields, replace(config, windows=windows), biased=True)


def build(b: GraphBuilder, config: MoeConfig) -> None:
    llama.build(b, config, partial(_feed_forward, config), _attention)


def _feed_forward(config: MoeConfig, b: GraphBuilder, x: Value) -> Value:
    return moe.experts(b, x, f"model.layers.{b.layer}.mlp", config, "router")


def _attention(b: GraphBuilder, x: Value) -> Value:
    heads = b.config.heads.queries("head", unit=1)
    return llama.attention(b, x, sinks=by_head(f"model.layers.{b.layer}.self_attn.sinks", 1, heads))


def weights(config: MoeConfig) -> WeightMap:
    """Maps gate and up, whose rows alternate in one tensor of floats or MXFP4, and sinks, a number a head."""
    heads, sinks = config.heads.heads, "self_attn.sinks"
    return WeightMap(
        stacked={sinks: Stacked((sinks,), (heads,), (1, heads))},
        experts=interleaved(config.experts, config.expert_ffn, config.hidden_size),
    )
