"""Decodes an image's file to the numbers that a model reads, bit for bit as transformers' Pillow processors.

PNG, JPEG, WebP and GIF; of several frames the first. Importing this imports Pillow.
"""

from __future__ import annotations

from io import BytesIO
from math import ceil

import numpy as np
import numpy.typing as npt
from PIL import (
    GifImagePlugin,
    Image,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)
from PIL import MpoImagePlugin as _MpoImagePlugin  # noqa: F401 -- a JPEG of several frames imports it
from PIL import TiffImagePlugin as _TiffImagePlugin  # noqa: F401 -- EXIF imports it

from corepipe.errors import UserError, shown
from corepipe.models.vision.preprocessing import ImageSize, Preprocessing, wrong_size

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
PLUGINS = (GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)
"""Pillow's plugins for these formats, imported here so that nothing is imported later."""
MAX_PIXELS = 1 << 24
"""The most pixels of a stored image: 16.8 million, 64 MiB while it is decoded."""
MAX_RESIZED = 1 << 24
"""The most pixels of an image whose shorter side has been resized."""


def open_image(data: bytes) -> Image.Image:
    """Opens an image in RGB, upright. Raises UserError for other files, and broken or too large images."""
    Image.MAX_IMAGE_PIXELS = None  # its check only warns; the limit is below
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise UserError("it is not a PNG, JPEG, WebP or GIF image") from None
    except Exception as error:  # whatever a decoder raises for untrusted input
        raise _broken(error) from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(f"it has {width}x{height} pixels; the limit is {MAX_PIXELS} in all")
    try:
        return upright(image)
    except Exception as error:
        raise _broken(error) from error


def upright(image: Image.Image) -> Image.Image:
    """Returns the image in RGB, turned as its EXIF says."""
    return ImageOps.exif_transpose(image).convert("RGB")


def _broken(error: Exception) -> UserError:
    if isinstance(error, MemoryError):
        return UserError("it takes too much memory to decode")
    return UserError(f"it cannot be decoded: {shown(str(error) or type(error).__name__, 120)}")


def pixels_of(image: Image.Image, steps: Preprocessing, wanted: ImageSize) -> F32:
    """Returns [channels, height, width] of an RGB image.

    Raises UserError where the steps leave it in another size than the model wants.
    """
    size = _resized(image, steps)
    if size is not None:
        image = image.resize((size.width, size.height), resample=steps.resample)
    array: U8 = np.asarray(image).transpose(2, 0, 1)
    if steps.crop is not None:
        array = _cropped(array, steps.crop)
    if array.shape[1:] != (wanted.height, wanted.width):
        raise wrong_size(array.shape[1], array.shape[2], wanted)
    return np.ascontiguousarray(_numbers(array, steps))


def _resized(image: Image.Image, steps: Preprocessing) -> ImageSize | None:
    if steps.shortest is None:
        return steps.resize
    width, height = image.size
    short, long = min(width, height), max(width, height)
    other = int(steps.shortest * long / short)
    if steps.shortest * other > MAX_RESIZED:
        raise UserError(f"it has {width}x{height} pixels: it is too long for its shorter side")
    return ImageSize(steps.shortest, other) if height <= width else ImageSize(other, steps.shortest)


def _cropped(array: U8, size: ImageSize) -> U8:
    """Cuts the middle out of [channels, height, width]; the area outside is black."""
    for axis, wanted in ((1, size.height), (2, size.width)):
        have = array.shape[axis]
        if have < wanted:
            before = ceil((wanted - have) / 2)
            edges = [(0, 0)] * 3
            edges[axis] = (before, wanted - have - before)
            array = np.pad(array, edges)
        else:
            start = (have - wanted) // 2
            array = np.take(array, range(start, start + wanted), axis=axis)
    return array


def _numbers(array: U8, steps: Preprocessing) -> F32:
    """Computes products in float64 and rounds them once; the rest in float32."""
    values = array.astype(np.float32)
    if steps.rescale is not None:
        values = (array.astype(np.float64) * steps.rescale).astype(np.float32)
    if steps.normalize is not None:
        mean, deviation = (np.array(each, np.float32)[:, None, None] for each in steps.normalize)
        values = (values - mean) / deviation
    return values
