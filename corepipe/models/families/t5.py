"""T5, Flan-T5 and mT5: an encoder over the source, and a decoder that attends to itself and to the encoder.

Layers are numbered consecutively: the encoder's first, then the decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import FUNCTIONS, ModelConfig, common, without_rope
from corepipe.models.families.blocks import gated_mlp, mlp, output, project
from corepipe.models.families.layers import GraphBuilder, by_head
from corepipe.models.fields import MAX_HIDDEN, MAX_LAYERS, Fields
from corepipe.neuron.axes import fixed
from corepipe.neuron.ops import CrossAttention
from corepipe.neuron.values import SOURCE, TOKENS, Value, WeightSpec

EMBEDDING = "shared.weight"
TRAINED_POSITIONS = 512
"""The length that T5 was trained with; its positions are relative, and its config may omit it."""

KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "head_dim": "d_kv",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "dense_act",
}


@dataclass(frozen=True, slots=True)
class T5Config(ModelConfig):
    """`encoder_layers` of all layers; `gated` feed-forwards (T5 1.1); `buckets` of distances with a bias."""

    encoder_layers: int = 0
    gated: bool = False
    buckets: int = 32


def configure(fields: Fields) -> T5Config:
    """Reads the config; `feed_forward_proj` is "relu", "gated-gelu" or similar."""
    kind = fields.text("feed_forward_proj", "relu")
    encoder = fields.integer("num_layers", MAX_LAYERS)
    decoder = fields.integer("num_decoder_layers", MAX_LAYERS, default=encoder)
    fields = fields.defaulting("tie_word_embeddings", value=True)
    fields = fields.defaulting("n_positions", TRAINED_POSITIONS)
    function = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    renamed = fields.replace("dense_act", function).renamed(KEYS)
    layers = encoder + decoder
    config = replace(common(without_rope(renamed), FUNCTIONS), num_layers=layers, windows=(None,) * layers)
    return T5Config(
        **config.values(),
        encoder_layers=encoder,
        gated=kind.startswith("gated-"),
        buckets=fields.integer("relative_attention_num_buckets", MAX_HIDDEN, default=32),
    )


def build(b: GraphBuilder, config: T5Config) -> None:
    """Appends the forward pass: source ids and target ids to logits [rows wanted, vocab]."""
    b.rows = SOURCE
    source = _encode(b, config)
    b.rows = TOKENS
    b.layer = config.encoder_layers
    x = b.embed(EMBEDDING)
    for layer in b.layers(config.encoder_layers):
        block = f"decoder.block.{layer - config.encoder_layers}.layer"
        x = _attend(b, x, f"{block}.0", _table(config, "decoder"), causal=True)
        attended = _cross(b, b.norm(x, f"{block}.1.layer_norm"), source, f"{block}.1.EncDecAttention")
        attended, x = b.only_wanted(attended, x)
        x = b.add(x, output(b, attended, f"{block}.1.EncDecAttention.o"))
        x = _feed_forward(b, x, f"{block}.2", config)
    x = b.norm(x, "decoder.final_layer_norm")
    b.head(b.scale(x, config.hidden_size**-0.5) if config.tied else x)


def _encode(b: GraphBuilder, config: T5Config) -> Value:
    x = b.embed(EMBEDDING)
    for layer in b.layers(0, config.encoder_layers):
        block = f"encoder.block.{layer}.layer"
        x = _attend(b, x, f"{block}.0", _table(config, "encoder"), causal=False)
        x = _feed_forward(b, x, f"{block}.1", config)
    return b.norm(x, "encoder.final_layer_norm")


def _table(config: T5Config, part: str) -> WeightSpec:
    name = f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return by_head(name, config.buckets, fixed("head", config.heads.heads))


def _attend(b: GraphBuilder, x: Value, prefix: str, table: WeightSpec, causal: bool) -> Value:
    qkv = project(b, b.norm(x, f"{prefix}.layer_norm"), f"{prefix}.SelfAttention", ("q", "k", "v"))
    attended = b.attention(*qkv, scale=1.0, causal=causal, distance_bias=table)
    return b.add(x, output(b, attended, f"{prefix}.SelfAttention.o"))


def _cross(b: GraphBuilder, x: Value, source: Value, prefix: str) -> Value:
    """Appends cross-attention: queries of the target, keys and values of the source."""
    heads = b.config.heads
    q = b.linear(x, f"{prefix}.q", heads.queries())
    k, v = (b.linear(source, f"{prefix}.{part}", heads.keys()) for part in "kv")
    return b.append(CrossAttention(b.layer, b.value(q.axis, x.rows), q, k, v, heads, 1.0))


def _feed_forward(b: GraphBuilder, x: Value, prefix: str, config: T5Config) -> Value:
    normed = b.norm(x, f"{prefix}.layer_norm")
    if config.gated:
        fed = gated_mlp(b, normed, f"{prefix}.DenseReluDense", ("wi_0", "wi_1", "wo"))
    else:
        fed = mlp(b, normed, f"{prefix}.DenseReluDense.wi", f"{prefix}.DenseReluDense.wo")
    return b.add(x, fed)
