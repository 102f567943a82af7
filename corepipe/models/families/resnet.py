"""ResNet (He et al. 2016): residual blocks of two convolutions, or of three through a narrow middle.

Of three, the second has the stride, as in torchvision and transformers (version 1.5).
"""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.families import images
from corepipe.models.families.images import MAX_BLOCKS, MAX_CHANNELS, ImageBuilder, ImageConfig, Map, counts
from corepipe.models.fields import Fields
from corepipe.neuron.ops.convolution import Window

builder = ImageBuilder
IMAGE, CLASSES = 224, 1000
STEM = 64
"""The default number of channels before the first stage."""

NARROW = 4
"""The ratio of a block's width to that of its middle."""


def configure(fields: Fields) -> ImageConfig:
    """Reads `hidden_sizes`, `depths` and `layer_type`, as in transformers' ResNetConfig."""
    fields.refuse("downsample_in_first_stage", "downsample_in_bottleneck")
    kind = fields.require("layer_type", ("bottleneck", "basic"), "bottleneck")
    fields.require("hidden_act", ("relu",), "relu")
    widths = counts(fields, "hidden_sizes", MAX_CHANNELS, (256, 512, 1024, 2048))
    depths = counts(fields, "depths", MAX_BLOCKS, (3, 4, 6, 3))
    if len(widths) != len(depths):
        raise fields.error("depths", "must have as many stages as hidden_sizes")
    stem = fields.integer("embedding_size", MAX_CHANNELS, default=STEM)
    config = images.configure(fields, IMAGE, CLASSES, widths, depths)
    return replace(config, bottleneck=kind == "bottleneck", stem=stem)


def build(b: ImageBuilder, config: ImageConfig) -> None:
    """Appends the forward pass: an image to its classes."""
    x = b.convolve(b.image(), "resnet.embedder.embedder.convolution", config.stem, Window.square(7, 2))
    x = b.pool(x, Window.square(3, 2))
    for stage, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        for block in range(depth):
            b.layer += 1
            stride = 2 if stage and not block else 1
            x = _block(b, x, f"resnet.encoder.stages.{stage}.layers.{block}", width, stride)
    b.layer += 1
    classes = b.convolve(b.average(x), "classifier.1", config.classes, Window.square(1), None)
    b.give_map(classes)


def _block(b: ImageBuilder, x: Map, prefix: str, width: int, stride: int) -> Map:
    """Appends x plus its convolutions; x goes through a 1 x 1 convolution where its shape changes."""
    known = x
    if stride > 1 or x.channels != width:
        known = b.convolve(x, f"{prefix}.shortcut.convolution", width, Window.square(1, stride), None)
    if not b.config.bottleneck:
        x = b.convolve(x, f"{prefix}.layer.0.convolution", width, Window.square(3, stride))
        return b.convolve(x, f"{prefix}.layer.1.convolution", width, Window.square(3), residual=known)
    x = b.convolve(x, f"{prefix}.layer.0.convolution", width // NARROW, Window.square(1))
    x = b.convolve(x, f"{prefix}.layer.1.convolution", width // NARROW, Window.square(3, stride))
    return b.convolve(x, f"{prefix}.layer.2.convolution", width, Window.square(1), residual=known)
