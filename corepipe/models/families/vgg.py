"""VGG (Simonyan and Zisserman 2015): convolutions of 3 x 3, a pool after each stage, three large matrices."""

from __future__ import annotations

from corepipe.models.families import images
from corepipe.models.families.images import MAX_BLOCKS, MAX_CHANNELS, ImageBuilder, ImageConfig, Map, counts
from corepipe.models.fields import Fields
from corepipe.neuron.ops.convolution import MapSize, PoolKind, Window

builder = ImageBuilder
IMAGE, CLASSES = 224, 1000
LAST = 7
"""Pixels a side that the first matrix reads."""

MATRICES = 4096
"""The width of the two matrices between the convolutions and the classes."""


def configure(fields: Fields) -> ImageConfig:
    """Reads `depths`, the convolutions of each stage, and `hidden_sizes`, their channels; our own keys."""
    widths = counts(fields, "hidden_sizes", MAX_CHANNELS, (64, 128, 256, 512, 512))
    depths = counts(fields, "depths", MAX_BLOCKS, (2, 2, 3, 3, 3))
    if len(widths) != len(depths):
        raise fields.error("depths", "must have as many stages as hidden_sizes")
    config = images.configure(fields, IMAGE, CLASSES, widths, depths)
    if config.image % (LAST << len(depths)):
        raise fields.error("image_size", f"({config.image}) must be a multiple of {LAST << len(depths)}")
    return config


def build(b: ImageBuilder, config: ImageConfig) -> None:
    """Appends the forward pass: an image to its classes."""
    x = b.image()
    for stage, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        for i in range(depth):
            b.layer += 1
            x = b.convolve(x, f"features.{stage}.{i}", width, Window.square(3))
        x = b.pool(x, Window.square(2, 2, 0))
    x = _shrunk(b, x)
    b.layer += 1
    x = b.convolve(x, "classifier.0", MATRICES, Window(x.size))
    x = b.convolve(x, "classifier.3", MATRICES, Window.square(1))
    x = b.convolve(x, "classifier.6", config.classes, Window.square(1), None)
    b.give_map(x)


def _shrunk(b: ImageBuilder, x: Map) -> Map:
    """Appends the means that shrink a larger map to the size that the first matrix reads."""
    step = x.size.height // LAST
    square = MapSize(step, step)
    return x if step == 1 else b.pool(x, Window(square, square), PoolKind.AVERAGE)
