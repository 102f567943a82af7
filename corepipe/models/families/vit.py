"""ViT and DeiT: an image's patches are the tokens, after one learned vector (or two)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.heads import ClassHead
from corepipe.models.families.layers import GraphBuilder, vector
from corepipe.models.fields import MAX_HIDDEN, Fields
from corepipe.models.weight_map import Stacked, WeightMap
from corepipe.neuron.axes import Axis, AxisKind, fixed, hidden
from corepipe.neuron.ops import Function, PatchEmbed
from corepipe.neuron.values import OutputKind, Value, WeightRole, WeightSpec

MAX_CHANNELS = 64
EPS = 1e-12
"""The norms' constant where a config has none."""
NAMES = classic.Names(
    "{}",
    norms=("layernorm_before", "layernorm_after"),
    attention="attention.attention",
    out="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
    qkv=("query", "key", "value"),
)


@dataclass(frozen=True, slots=True)
class VitConfig(ModelConfig):
    """`channels` of square patches, `patch` pixels a side; `first`: the learned vectors before the patches,
    by the names of their tensors; `prefix` of weights."""

    channels: int = 3
    patch: int = 0
    first: tuple[str, ...] = ()
    prefix: str = "vit"

    @property
    def pixels(self) -> Axis:
        """The axis of a patch's pixels: all channels, one after the other."""
        each = self.patch**2
        return Axis("pixels", AxisKind.FIXED, self.channels * each, each)


def configure(fields: Fields) -> VitConfig:
    """Reads the config: the tokens are the class token and the patches of an image of `image_size`."""
    return patches(fields, "vit", ("cls_token",))


def patches(fields: Fields, prefix: str, first: tuple[str, ...]) -> VitConfig:
    """Reads a config with `first` learned vectors. Raises UserError where patches do not tile the image."""
    image = fields.integer("image_size", MAX_HIDDEN, default=224)
    patch = fields.integer("patch_size", MAX_HIDDEN, default=16)
    if image % patch:
        raise fields.error("image_size", f"({image}) is not a multiple of patch_size ({patch})")
    shape = {"vocab_size": 1, "max_position_embeddings": len(first) + (image // patch) ** 2}
    plain = Fields(fields.path, {**fields.values, **shape}).defaulting("layer_norm_eps", EPS)
    config = classic.configure(plain, {"rms_norm_eps": "layer_norm_eps"}, "gelu", tied=False)
    config = replace(config, qkv_bias=fields.flag("qkv_bias", default=True))
    channels = fields.integer("num_channels", MAX_CHANNELS, default=3)
    return VitConfig(**config.values(), channels=channels, patch=patch, first=first, prefix=prefix)


def weights(config: VitConfig) -> WeightMap:
    """Maps names with the prefix or, where the base model was saved, without it; kernels of convolutions have
    four dimensions, and learned vectors have a leading dimension for images."""
    at, width, rows = "embeddings", config.hidden_size, config.max_positions
    kernel = (width, config.channels, config.patch, config.patch)
    first, places = tuple(f"{at}.{name}" for name in config.first), f"{at}.position_embeddings"
    return WeightMap(
        f"{config.prefix}.",
        stacked={
            f"{at}.first_tokens": Stacked(first, (1, 1, width), (len(first), width)),
            places: Stacked((places,), (1, rows, width), (rows, width), grid=len(first)),
            "projection.weight": Stacked(("projection.weight",), kernel, (width, config.pixels.width)),
        },
    )


def base(b: GraphBuilder, x: Value, config: VitConfig) -> None:
    """Appends a vector an image, as the base model with its pooler does."""
    x = b.select_rows(x)
    pooled = b.linear(x, f"{config.prefix}.pooler.dense", x.axis, bias=True)
    b.give(b.activation(pooled, Function.TANH), OutputKind.VECTOR)


def trunk(b: GraphBuilder, config: VitConfig) -> Value:
    """Appends the Ops up to the hidden state of every patch and of the learned vectors."""
    prefix = f"{config.prefix}.embeddings"
    x = _embed(b, config, prefix)
    x = b.add_embedding(x, f"{prefix}.position_embeddings", config.max_positions)
    names = replace(NAMES, block=f"{config.prefix}.encoder.layer.{{}}")
    for _ in b.layers():
        x = classic.sequential(b, x, names, classic.bidirectional)
    return b.norm(x, f"{config.prefix}.layernorm")


def _embed(b: GraphBuilder, config: VitConfig, prefix: str) -> Value:
    width, project = hidden(config.hidden_size), f"{prefix}.patch_embeddings.projection"
    weight = WeightSpec(f"{project}.weight", (width, config.pixels), WeightRole.MATRIX)
    first = WeightSpec(
        f"{prefix}.first_tokens", (fixed("tokens", len(config.first)), width), WeightRole.VECTOR
    )
    bias = vector(f"{project}.bias", width)
    return b.append(PatchEmbed(b.layer, b.value(width), weight, bias, first))


def class_head(_config: VitConfig) -> ClassHead:
    return ClassHead((), "classifier")
