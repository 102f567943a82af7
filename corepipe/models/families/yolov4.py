"""YOLOv4 (Bochkovskiy et al. 2020): CSPDarknet53, a pyramid of pools, a way up and down, three maps of boxes.

The boxes themselves are chosen on the host.
"""

from __future__ import annotations

from corepipe.models.families import images
from corepipe.models.families.images import MAX_BLOCKS, MAX_CHANNELS, ImageBuilder, ImageConfig, Map, counts
from corepipe.models.fields import Fields
from corepipe.neuron.ops.convolution import ImageFunction, Window
from corepipe.neuron.values import OutputKind

builder = ImageBuilder
IMAGE, CLASSES = 608, 80
ANCHORS, BOX = 3, 5
"""Boxes at each pixel; numbers of a box beside its classes."""

POOLS = (5, 9, 13)
"""Windows of the pyramid."""

WIDTHS, DEPTHS = (64, 128, 256, 512, 1024), (1, 2, 8, 8, 4)
STRIDE = 32
"""Pixels of the image for one of the smallest map."""

SIZES = 3


def configure(fields: Fields) -> ImageConfig:
    """Reads `hidden_sizes` and `depths` of the backbone's stages; the keys are our own."""
    widths = counts(fields, "hidden_sizes", MAX_CHANNELS, WIDTHS)
    depths = counts(fields, "depths", MAX_BLOCKS, DEPTHS)
    if len(widths) != len(WIDTHS) or len(depths) != len(DEPTHS):
        raise fields.error("depths", f"and hidden_sizes must have {len(WIDTHS)} stages")
    config = images.configure(fields, IMAGE, CLASSES, widths, depths)
    if config.image % STRIDE:
        raise fields.error("image_size", f"({config.image}) must be a multiple of {STRIDE}")
    return config


def build(b: ImageBuilder, config: ImageConfig) -> None:
    """Appends the forward pass: an image to its three maps of boxes."""
    maps = _backbone(b)[-SIZES:]
    maps = _up(b, maps)
    maps = _down(b, maps)
    b.layer += 1
    columns = ANCHORS * (BOX + config.classes)
    for i, x in enumerate(maps):
        b.give_map(_boxes(b, x, f"head.{i}", columns), OutputKind.MAP)


def _leaky(b: ImageBuilder, x: Map, name: str, channels: int, kernel: int = 1, stride: int = 1) -> Map:
    return b.convolve(x, name, channels, Window.square(kernel, stride), ImageFunction.LEAKY_RELU)


def _mish(b: ImageBuilder, x: Map, name: str, channels: int, kernel: int = 1, stride: int = 1) -> Map:
    return b.convolve(x, name, channels, Window.square(kernel, stride), ImageFunction.MISH)


def _backbone(b: ImageBuilder) -> list[Map]:
    """Appends the maps of all stages: each halves the map, and half of its channels bypass its blocks."""
    config, maps = b.config, []
    x = _mish(b, b.image(), "stem", config.widths[0] // 2, 3)
    for stage, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        b.layer += 1
        x = _stage(b, x, f"backbone.{stage}", width, depth, first=not stage)
        maps.append(x)
    return maps


def _stage(b: ImageBuilder, x: Map, prefix: str, width: int, depth: int, first: bool) -> Map:
    """Appends a stage; the first one's halves are as wide as the whole, its blocks half as wide inside."""
    part = width if first else width // 2
    x = _mish(b, x, f"{prefix}.down", width, 3, 2)
    past = _mish(b, x, f"{prefix}.past", part)
    x = _mish(b, x, f"{prefix}.through", part)
    for block in range(depth):
        b.layer += 1
        inside = _mish(b, x, f"{prefix}.{block}.0", width // 2)
        x = b.convolve(
            inside, f"{prefix}.{block}.1", part, Window.square(3), ImageFunction.MISH, x, added_last=True
        )
    return _mish(b, b.join(_mish(b, x, f"{prefix}.after", part), past), f"{prefix}.joined", width)


def _pyramid(b: ImageBuilder, x: Map, width: int) -> Map:
    """Appends the smallest map joined with its maxima over ever larger windows."""
    x = _alternate(b, x, "pyramid.before", width, 3)
    pooled = [b.pool(x, Window.square(kernel)) for kernel in reversed(POOLS)]
    return _alternate(b, b.join(*pooled, x), "pyramid.after", width, 3)


def _alternate(b: ImageBuilder, x: Map, prefix: str, width: int, count: int) -> Map:
    """Appends convolutions of 1 x 1 to `width`, alternating with 3 x 3 to twice that."""
    for i in range(count):
        x = _leaky(b, x, f"{prefix}.{i}", width * (1 + i % 2), 1 + 2 * (i % 2))
    return x


def _up(b: ImageBuilder, maps: list[Map]) -> list[Map]:
    """Appends, smallest first, each larger map joined with the enlarged one below it."""
    b.layer += 1
    x = _pyramid(b, maps[-1], maps[-1].channels // 2)
    found = [x]
    for beside in reversed(maps[:-1]):
        b.layer += 1
        width = beside.channels // 2
        above = b.enlarge(_leaky(b, x, f"up.{len(found)}.narrow", width))
        joined = b.join(_leaky(b, beside, f"up.{len(found)}.beside", width), above)
        x = _alternate(b, joined, f"up.{len(found)}", width, 5)
        found.append(x)
    return found


def _down(b: ImageBuilder, maps: list[Map]) -> list[Map]:
    """Appends, largest first, each smaller map joined with the halved one above it."""
    x = maps[-1]
    found = [x]
    for beside in reversed(maps[:-1]):
        b.layer += 1
        halved = _leaky(b, x, f"down.{len(found)}.halve", beside.channels, 3, 2)
        x = _alternate(b, b.join(halved, beside), f"down.{len(found)}", beside.channels, 5)
        found.append(x)
    return found


def _boxes(b: ImageBuilder, x: Map, prefix: str, columns: int) -> Map:
    wide = _leaky(b, x, f"{prefix}.0", 2 * x.channels, 3)
    return b.convolve(wide, f"{prefix}.1", columns, Window.square(1), None)
