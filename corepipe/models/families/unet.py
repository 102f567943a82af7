"""U-Net (Ronneberger et al. 2015), padded as in public implementations: down by pools, up by transposed
convolutions, each stage joined with the map of the same size on the way down."""

from __future__ import annotations

from corepipe.models.families import images
from corepipe.models.families.images import MAX_CHANNELS, ImageBuilder, ImageConfig, Map, counts
from corepipe.models.fields import Fields
from corepipe.neuron.ops.convolution import Window
from corepipe.neuron.values import OutputKind

builder = ImageBuilder
IMAGE, CLASSES = 224, 2
WIDTHS = (64, 128, 256, 512, 1024)


def configure(fields: Fields) -> ImageConfig:
    """Reads `hidden_sizes`, the channels of each stage; the keys are our own. Each stage halves the image."""
    widths = counts(fields, "hidden_sizes", MAX_CHANNELS, WIDTHS)
    config = images.configure(fields, IMAGE, CLASSES, widths, (1,) * len(widths))
    if config.image % (1 << (len(widths) - 1)):
        raise fields.error("image_size", f"({config.image}) must be a multiple of {1 << (len(widths) - 1)}")
    return config


def build(b: ImageBuilder, config: ImageConfig) -> None:
    """Appends the forward pass: an image to the classes of its pixels."""
    x, beside = b.image(), []
    for stage, width in enumerate(config.widths):
        b.layer += 1
        x = _twice(b, x if not stage else b.pool(x, Window.square(2, 2, 0)), f"down.{stage}", width)
        beside.append(x)
    for stage in reversed(range(len(config.widths) - 1)):
        b.layer += 1
        up = b.convolve_up(x, f"up.{stage}.up", config.widths[stage])
        x = _twice(b, b.join(beside[stage], up), f"up.{stage}", config.widths[stage])
    classes = b.convolve(x, "classes", config.classes, Window.square(1), None)
    b.give_map(classes, OutputKind.MAP)


def _twice(b: ImageBuilder, x: Map, prefix: str, width: int) -> Map:
    for i in range(2):
        x = b.convolve(x, f"{prefix}.{i}", width, Window.square(3))
    return x
