"""Images for the library: paths, the bytes of files, and Pillow images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.files import read_bytes
from corepipe.models.tasks import Images
from corepipe.models.vision.preprocessing import FILE
from corepipe.models.vision.reader import ImageReader, ImageSetting
from corepipe.sandbox import MAX_FRAME

if TYPE_CHECKING:  # callers with its images have imported it
    from PIL.Image import Image

Picture: TypeAlias = "str | Path | bytes | Image"


class Pictures:
    """Reads images for a model."""

    def __init__(self, images: Images) -> None:
        self._images = images

    @property
    def rows(self) -> int:
        """The number of rows of an image."""
        return self._images.rows

    def read(self, given: object) -> Iterator[tuple[str | None, bytes]]:
        """Yields for one image or several its path, if it has one, and its pixels as in `messages.Submit`.

        Raises UserError, which names the input, for what is not an image.
        """
        listed: list[object] = list(given) if isinstance(given, list | tuple) else [given]
        for number, one in enumerate(listed):
            name = f"images[{number}]" if isinstance(given, list | tuple) else "image"
            try:
                yield (str(one) if isinstance(one, str | Path) else None), self._pixels(one)
            except UserError as error:
                raise UserError(f"{name}: {error.message}", "images") from error

    def close(self) -> None:
        """Ends the processes that decode images."""
        if "_reader" in self.__dict__:
            self._reader.close()

    @cached_property
    def _reader(self) -> ImageReader:
        return ImageReader(self._setting)

    @cached_property
    def _setting(self) -> ImageSetting:
        if self._images.preprocessing is None:
            raise UserError(f"the model's directory has no {FILE}, which describes how to preprocess images")
        return ImageSetting(self._images.preprocessing, self._images.size)

    def _pixels(self, given: object) -> bytes:
        if isinstance(given, str | Path):
            return self._reader.read(read_bytes(Path(given), MAX_FRAME, "an image")).pixels
        if isinstance(given, bytes):
            return self._reader.read(given).pixels
        if _is_pillows(given):
            return self._of_pillow(given)
        raise UserError(f"give a path, the bytes of a file, or a Pillow image, not {shown(repr(given))}")

    def _of_pillow(self, image: Image) -> bytes:
        """Preprocesses the image in this process, which has decoded it already."""
        from corepipe.models.vision.decoding import pixels_of, upright  # noqa: PLC0415 -- it imports Pillow

        setting = self._setting
        return pixels_of(upright(image), setting.steps, setting.wanted).astype("<f4").tobytes()


def _is_pillows(given: object) -> TypeGuard[Image]:
    pillow: Any = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(given, pillow.Image)
