"""ViT and DeiT: an image's patches are the tokens, after one learned vector (or two)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import MAX_HIDDEN, Fields, ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder, vector
from corepipe.neuron.graph import (
    Format,
    Graph,
    Output,
    OutputKind,
    Value,
    WeightRole,
    WeightSpec,
    fixed,
    hidden,
)
from corepipe.neuron.ops import Function, PatchEmbed

MAX_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class VitConfig(ModelConfig):
    """`pixels` of a patch, all channels; `first`: learned vectors before the patches; `prefix` of weights."""

    pixels: int = 0
    first: int = 1
    prefix: str = "vit"


def configure(fields: Fields) -> VitConfig:
    """The tokens are the patches of an image of `image_size`, and the class token before them."""
    return patches(fields, "vit", first=1)


def patches(fields: Fields, prefix: str, first: int) -> VitConfig:
    """A config with `first` learned vectors.  Raises UserError where the patches do not tile the image."""
    image = fields.integer("image_size", MAX_HIDDEN, default=224)
    patch = fields.integer("patch_size", MAX_HIDDEN, default=16)
    if image % patch:
        raise fields.error("image_size", f"({image}) is not a multiple of patch_size ({patch})")
    shape = {"vocab_size": 1, "max_position_embeddings": first + (image // patch) ** 2}
    plain = Fields(fields.path, {**fields.values, **shape})
    config = classic.configure(plain, {"rms_norm_eps": "layer_norm_eps"}, "gelu", tied=False)
    config = replace(config, qkv_bias=fields.flag("qkv_bias", default=True))
    pixels = patch * patch * fields.integer("num_channels", MAX_CHANNELS, default=3)
    return VitConfig(**config.values(), pixels=pixels, first=first, prefix=prefix)


def build(config: VitConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: patches to a vector an image, as the base model with its pooler gives it."""
    b = GraphBuilder(config, every_row=True)
    prefix = f"{config.prefix}.embeddings"
    x = _embed(b, config, prefix)
    x = b.add_embedding(x, f"{prefix}.position_embeddings", config.max_positions)
    for layer in b.layers():
        x = classic.sequential(b, x, _names(config.prefix, layer), classic.bidirectional)
    x = b.select_rows(b.norm(x, f"{config.prefix}.layernorm"))
    pooled = b.linear(x, f"{config.prefix}.pooler.dense", x.axis, bias=True)
    vector_of_image = Output(b.activation(pooled, Function.TANH), OutputKind.VECTOR)
    return b.finish(name, fmt, max_positions, causal=False, outputs=[vector_of_image])


def _embed(b: GraphBuilder, config: VitConfig, prefix: str) -> Value:
    width, project = hidden(config.hidden_size), f"{prefix}.patch_embeddings.projection"
    weight = WeightSpec(f"{project}.weight", (width, fixed("pixels", config.pixels)), WeightRole.MATRIX)
    first = WeightSpec(f"{prefix}.first_tokens", (fixed("tokens", config.first), width), WeightRole.VECTOR)
    bias = vector(f"{project}.bias", width)
    return b.append(PatchEmbed(b.layer, b.value(width), weight, bias, first))


def _names(prefix: str, layer: int) -> classic.Names:
    block = f"{prefix}.encoder.layer.{layer}"
    return classic.Names(
        norms=(f"{block}.layernorm_before", f"{block}.layernorm_after"),
        attention=f"{block}.attention.attention",
        qkv=("query", "key", "value"),
        out=f"{block}.attention.output.dense",
        up=f"{block}.intermediate.dense",
        down=f"{block}.output.dense",
    )
