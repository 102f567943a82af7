"""The process of `reader`: `python -m corepipe.models.vision.image_sandbox SECONDS`; its input is a socket.

The first frame is the ImageSetting; then each image's file is answered by a DecodedImage.
"""

from __future__ import annotations

import contextlib
import sys
from io import BytesIO

import msgspec
from PIL import Image

from corepipe import sandbox
from corepipe.errors import UserError
from corepipe.models.vision.decoding import FORMATS, open_image, pixels_of
from corepipe.models.vision.reader import MAX_MEMORY, DecodedImage, ImageSetting
from corepipe.sandbox import MAX_FRAME, receive, send, time_limit


def main(cpu_seconds: float) -> None:
    """Serves until the other end is closed."""
    connection = sandbox.connection()
    _try_formats()
    sandbox.confine(MAX_MEMORY)
    with contextlib.suppress(EOFError, ConnectionError):
        setting = msgspec.msgpack.decode(receive(connection, MAX_FRAME), type=ImageSetting)
        send(connection, msgspec.msgpack.encode(DecodedImage()))
        while True:
            data = receive(connection, MAX_FRAME)
            send(connection, msgspec.msgpack.encode(_answer(data, setting, cpu_seconds)))


def _try_formats() -> None:
    """Makes Pillow load what it loads late, as long as files can be opened."""
    for name in FORMATS:
        file = BytesIO()
        Image.new("RGB", (1, 1)).save(file, name)
        open_image(file.getvalue())


def _answer(data: bytes, setting: ImageSetting, cpu_seconds: float) -> DecodedImage:
    try:
        with time_limit(cpu_seconds):
            image = open_image(data)
            pixels = pixels_of(image, setting.steps, setting.wanted)
            return DecodedImage(pixels.astype("<f4").tobytes(), image.width * image.height)
    except UserError as error:
        return DecodedImage(error=error.message)
    except MemoryError:
        return DecodedImage(error="it takes too much memory to decode")


if __name__ == "__main__":
    main(float(sys.argv[1]))
