"""ModernBERT: rotary positions, pre-norm layers, gated feed-forwards, and windows in two layers of three."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import FUNCTIONS, ModelConfig, Norm, common, sliding_windows, without_rope
from corepipe.models.families import encoder
from corepipe.models.families.blocks import fused, gated_mlp, output, project
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.windows import Windows, layer_ropes
from corepipe.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from corepipe.models.weight_map import WeightMap, heads_in_turn, in_turn
from corepipe.neuron.formats import Function
from corepipe.neuron.ops import PoolingMode
from corepipe.neuron.values import OutputKind, Value

DEFAULTS: dict[str, object] = {"rope_theta": 160000.0, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
WINDOW, EVERY = 128, 3
"""The default width of a window, and which layers have none: the first, the fourth ..."""
POOLINGS = {"cls": PoolingMode.FIRST, "mean": PoolingMode.MEAN}
EMBEDDING = "model.embeddings.tok_embeddings"
MIDDLE = ("Wi.gate", "Wi.up")
"""The parts of a feed-forward's first matrix: the function's input, and its multiplier."""


@dataclass(frozen=True, slots=True)
class ModernBertConfig(ModelConfig):
    """`masked_lm`: logits of every token instead of hidden states, with a `decoder_bias`.

    Classes and masked tokens are computed after a step with or without a bias; `pooling` is the row of a text
    that is classified.
    """

    masked_lm: bool = False
    decoder_bias: bool = True
    step_bias: bool = False
    step_function: Function = Function.GELU
    pooling: PoolingMode = PoolingMode.FIRST

    @property
    def step(self) -> HeadStep:
        """The step before classes and masked tokens."""
        return HeadStep("head.dense", self.step_function, self.step_bias, norm="head.norm")


def configure(fields: Fields) -> ModernBertConfig:
    """Reads both spellings of positions and windows: `layer_types` with `rope_parameters`, and
    `global_attn_every_n_layers` with `global_rope_theta` and `local_rope_theta`."""
    fields = fields.renamed(
        {"hidden_act": "hidden_activation", "rms_norm_eps": "norm_eps", "rope_theta": "global_rope_theta"}
    )
    for key, value in DEFAULTS.items():
        fields = fields.defaulting(key, value)
    fields.refuse("rope_scaling")
    masked = fields.require("head", encoder.HEADS, "base") == "masked-lm"
    config = common(without_rope(fields), ("gelu", *FUNCTIONS))
    biased = fields.flag("attention_bias")
    windows = _windows(fields, config.num_layers)
    config = replace(
        config,
        norm=Norm.LAYER if fields.flag("norm_bias") else Norm.LAYER_NO_BIAS,
        qkv_bias=biased,
        out_bias=biased,
        mlp_bias=fields.flag("mlp_bias"),
        windows=windows,
        layer_ropes=layer_ropes(fields, config, windows, "local_rope_theta"),
        tied=masked and config.tied,
    )
    return ModernBertConfig(
        **config.values(),
        masked_lm=masked,
        decoder_bias=fields.flag("decoder_bias", default=True),
        step_bias=fields.flag("classifier_bias"),
        step_function=FUNCTIONS[fields.require("classifier_activation", tuple(FUNCTIONS), "gelu")],
        pooling=POOLINGS[fields.require("classifier_pooling", tuple(POOLINGS), "cls")],
    )


def _windows(fields: Fields, layers: int) -> Windows:
    width = fields.integer("local_attention", MAX_POSITIONS, default=WINDOW)
    every = fields.integer("global_attn_every_n_layers", MAX_LAYERS, default=EVERY)
    if fields.has("layer_types"):
        return sliding_windows(fields, width, 0, layers)
    return tuple(width if layer % every else None for layer in range(layers))


def trunk(b: GraphBuilder, _config: ModernBertConfig) -> Value:
    """Appends the Ops up to every token's hidden state. Layer 0 does not norm the normed embeddings."""
    x = b.norm(b.embed(f"{EMBEDDING}.weight"), "model.embeddings.norm")
    for layer in b.layers():
        block = f"model.layers.{layer}"
        normed = b.norm(x, f"{block}.attn_norm") if layer else x
        q, k, v = project(b, normed, f"{block}.attn", fused("Wqkv"))
        attended = b.attention(b.rope(q), b.rope(k), v, causal=False)
        x = b.add(x, output(b, attended, f"{block}.attn.Wo"))
        x = b.add(x, gated_mlp(b, b.norm(x, f"{block}.mlp_norm"), f"{block}.mlp", (*MIDDLE, "Wo")))
    return b.norm(x, "model.final_norm")


def class_head(config: ModernBertConfig) -> ClassHead:
    return ClassHead((config.step,), "classifier", config.pooling, token_steps=(config.step,))


def base(b: GraphBuilder, x: Value, config: ModernBertConfig) -> None:
    """Makes the hidden states the output, or the logits of each token."""
    if config.masked_lm:
        b.head(config.step.put_on(b, x), "decoder", config.decoder_bias)
    else:
        b.give(x, OutputKind.HIDDEN)


def weights(config: ModernBertConfig) -> WeightMap:
    """Maps queries, keys and values, which are one matrix, and both halves of a feed-forward's middle."""
    heads = heads_in_turn("Wqkv", fused("Wqkv"), config.heads)
    return WeightMap(parts=heads | in_turn("Wi", dict.fromkeys(MIDDLE, config.ffn_size)))
