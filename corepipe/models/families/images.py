"""Shared by convolutional networks: a config of images, and a builder of Graphs over feature maps.

Batch norms are folded into the convolutions before them: a convolution has a bias, and no norm follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corepipe.models.config import ModelConfig, common
from corepipe.models.families.layers import GraphBuilder, vector
from corepipe.models.fields import Fields
from corepipe.neuron.axes import Axis, fixed
from corepipe.neuron.ops import Concatenate, Convolution, Op, Pixels, Upconvolution, Upsample, WindowPool
from corepipe.neuron.ops.convolution import ImageFunction, MapSize, PoolKind, Window
from corepipe.neuron.values import OutputKind, RowSet, Value, WeightRole, WeightSpec, pixels

MAX_IMAGE = 1 << 13
"""Pixels of a side."""

MAX_CHANNELS = 1 << 14
MAX_BLOCKS = 1 << 8

COLOURS = 3

NOT_OF_IMAGES = {
    "vocab_size": 1,
    "hidden_size": 2,
    "intermediate_size": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 1,
}
"""A transformer's keys that a convolutional network lacks: it has one position, the image."""


@dataclass(frozen=True, slots=True)
class ImageConfig(ModelConfig):
    """A network over square images: `image` pixels a side, `channels` of each; `classes` that it
    distinguishes.

    widths, depths: channels and blocks of each of its stages. stem: channels before them. bottleneck: a block
    has three convolutions.
    """

    image: int = 0
    channels: int = COLOURS
    classes: int = 0
    widths: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    bottleneck: bool = False
    stem: int = 0


def configure(
    fields: Fields, image: int, classes: int, widths: Sequence[int], depths: Sequence[int]
) -> ImageConfig:
    """Reads `image_size` and `num_labels` (or the size of `id2label`) from the config, with defaults."""
    labels = fields.section("id2label")
    plain = Fields(fields.path, {**NOT_OF_IMAGES, "num_hidden_layers": max(1, sum(depths))})
    config = common(plain.replace("model_type", fields.text("model_type")))
    return ImageConfig(
        **config.values(),
        image=fields.integer("image_size", MAX_IMAGE, default=image),
        channels=fields.integer("num_channels", MAX_CHANNELS, default=COLOURS),
        classes=fields.integer("num_labels", MAX_CHANNELS, default=len(labels.values) if labels else classes),
        widths=tuple(widths),
        depths=tuple(depths),
    )


def counts(fields: Fields, key: str, most: int, default: Sequence[int]) -> list[int]:
    """Reads a list of integers from 1 to `most`, one a stage."""
    values = fields.items(key) if fields.has(key) else list(default)
    sound = all(type(value) is int and 1 <= value <= most for value in values)
    if not values or not sound:
        raise fields.error(key, f"must be a list of integers from 1 to {most}")
    return values


@dataclass(frozen=True, slots=True)
class Map:
    """A feature map of an image: its value, and its size."""

    value: Value
    size: MapSize

    @property
    def channels(self) -> int:
        return self.value.width


class ImageBuilder(GraphBuilder):
    """Collects the Ops of one forward pass over images."""

    config: ImageConfig

    @property
    def causal(self) -> bool:
        return False

    @property
    def num_layers(self) -> int:
        return self.layer + 1

    @property
    def row_sets(self) -> tuple[RowSet, ...]:
        return tuple(dict.fromkeys(op.out.rows for op in self._ops))

    def give_map(self, x: Map, kind: OutputKind = OutputKind.VECTOR) -> None:
        """Makes x an output: one vector an image, or one a pixel."""
        self.give(x.value, kind)

    def image(self) -> Map:
        """Appends the input image."""
        size = MapSize(self.config.image, self.config.image)
        return self._append(Pixels(self.layer, self._made(size, self.config.channels)), size)

    def convolve(
        self,
        x: Map,
        name: str,
        channels: int,
        window: Window,
        function: ImageFunction | None = ImageFunction.RELU,
        residual: Map | None = None,
        added_last: bool = False,
    ) -> Map:
        """Appends a convolution of x, its batch norm folded in, with what follows its sums."""
        size = window.over(x.size)
        out = self._made(size, channels)
        window_axis = fixed("window", window.kernel.pixels * x.channels)
        weight = WeightSpec(f"{name}.weight", (out.axis, window_axis), WeightRole.MATRIX)
        added = None if residual is None else residual.value
        op = Convolution(
            self.layer,
            out,
            x.value,
            weight,
            vector(f"{name}.bias", out.axis),
            x.size,
            window,
            function=function,
            residual=added,
            added_last=added_last,
        )
        return self._append(op, size)

    def pool(self, x: Map, window: Window, kind: PoolKind = PoolKind.MAX) -> Map:
        size = window.over(x.size)
        return self._append(
            WindowPool(self.layer, self._made(size, x.channels), x.value, x.size, window, kind), size
        )

    def average(self, x: Map) -> Map:
        """Appends the mean of all pixels: one row an image."""
        return self.pool(x, Window(x.size), PoolKind.AVERAGE)

    def enlarge(self, x: Map, factor: int = 2) -> Map:
        """Appends x with each pixel repeated."""
        size = _larger(x.size, factor)
        return self._append(Upsample(self.layer, self._made(size, x.channels), x.value, factor), size)

    def convolve_up(self, x: Map, name: str, channels: int, factor: int = 2) -> Map:
        """Appends a transposed convolution whose window moves by its own size."""
        size = _larger(x.size, factor)
        out = self._made(size, channels)
        axes = (fixed("window", channels * factor**2), x.value.axis)
        weight = WeightSpec(f"{name}.weight", axes, WeightRole.MATRIX)
        bias = vector(f"{name}.bias", out.axis)
        return self._append(Upconvolution(self.layer, out, x.value, weight, bias, factor), size)

    def join(self, *maps: Map) -> Map:
        """Appends the concatenated channels of the maps."""
        size = maps[0].size
        out = self._made(size, sum(part.channels for part in maps))
        return self._append(Concatenate(self.layer, out, tuple(part.value for part in maps)), size)

    def _made(self, size: MapSize, channels: int) -> Value:
        return Value(len(self._ops), _channels(channels), pixels(*size))

    def _append(self, op: Op, size: MapSize) -> Map:
        return Map(self.append(op), size)


def _channels(count: int) -> Axis:
    return fixed("channels", count)


def _larger(size: MapSize, factor: int) -> MapSize:
    return MapSize(size.height * factor, size.width * factor)
