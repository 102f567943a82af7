"""Images that clients send as data URIs; separate processes read them, and nothing is ever fetched."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import partial

from corepipe.errors import UserError
from corepipe.models.tasks import Images
from corepipe.models.vision.preprocessing import COLOURS, FILE
from corepipe.models.vision.reader import DecodedImage
from corepipe.serving.api.answering.service import LONG_TEXT, Service
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions, Input, entries, read_entries
from corepipe.serving.api.http.errors import ApiError, invalid

MAX_IMAGES = 64
"""Images in one request: small files may be large images."""
MAX_STORED = 1 << 26
"""Decoded pixels of all images of a request: 67 million take a second or two."""
SCHEME, BASE64 = "data:", ";base64"
FETCHED = ("http:", "https:", "ftp:", "file:", "s3:", "gs:", "//")


async def read_input(
    service: Service, given: Input, field: str, options: EncodingOptions, before: str = ""
) -> list[EncodedPrompt]:
    """Returns prompts of the contents of a field: images where the model reads images, else texts.

    Raises ApiError, naming the entry at fault.
    """
    listed = entries(given, field)
    if service.task.images is None:
        return await read_entries(service, listed, field, options, before)
    return await read_images(service, service.task.images, listed, field)


async def read_images(
    service: Service, images: Images, listed: Sequence[str | list[int]], field: str
) -> list[EncodedPrompt]:
    """Returns prompts of data URIs.  Raises ApiError for what is no image, or cannot be read."""
    if images.preprocessing is None:
        raise _tensors_alone(images)
    if len(listed) > MAX_IMAGES:
        raise invalid(f"{field} has {len(listed)} images; at most {MAX_IMAGES} are taken.", field)
    prompts, left = [], MAX_STORED
    for number, one in enumerate(listed):
        named = field if len(listed) == 1 else f"{field}[{number}]"
        if not isinstance(one, str):
            raise invalid(f"{named}: this model reads images: send data URIs.", named, "invalid_type")
        found = await service.beside(LONG_TEXT, partial(_read, service, one, named))
        prompts.append(of_pixels(images, found.pixels))
        left -= found.stored
        if left < 0:
            raise invalid(f"{field}: the images have more than {MAX_STORED} pixels in all.", field)
    return prompts


def of_pixels(images: Images, pixels: bytes) -> EncodedPrompt:
    """Returns the prompt of an image: its pixels, as the model reads them."""
    return EncodedPrompt([0] * images.rows, image=pixels)


def _read(service: Service, text: str, field: str) -> DecodedImage:
    try:
        return service.images.read(_decoded(text, field))
    except UserError as error:
        raise invalid(f"{field}: the image is refused: {error.message}.", field) from None


def _decoded(uri: str, field: str) -> bytes:
    """Returns the bytes of a data URI.  Raises ApiError."""
    if uri.lower().startswith(FETCHED):
        message = f"{field}: nothing is fetched here; send the image itself as a data URI."
        raise invalid(message, field)
    head, comma, data = uri.partition(",")
    if not (head.startswith(SCHEME) and comma):
        message = f"{field}: this model reads images: send a data URI, data:image/png;base64,..."
        raise invalid(message, field)
    if not (head.startswith("data:image/") and head.endswith(BASE64)):
        raise invalid(f"{field}: a data URI must begin with data:image/ and be in base64.", field)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{field}: the data URI is no valid base64.", field) from None


def _tensors_alone(images: Images) -> ApiError:
    channels = images.shape[0]
    why = f"has no {FILE}" if channels == COLOURS else f"reads {channels} channels"
    message = f"The model {why}: send pixel_values to /v2/models/{{model}}/infer."
    return invalid(message, "input", "unsupported_value")
