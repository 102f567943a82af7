"""Reads the steps of a preprocessor_config.json; what is not implemented is refused by its key.

The steps are those of transformers' ViTImageProcessor and DeiTImageProcessor (their Pillow backend), in its
order and with its defaults; `decoding` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from corepipe.errors import UserError, shown
from corepipe.models.fields import Fields, read_json

FILE = "preprocessor_config.json"
COLOURS = 3
MAX_SIDE = 1 << 13
MEAN = STD = (0.5, 0.5, 0.5)
BYTE = 1 / 255

RESAMPLING = MappingProxyType(
    {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
)
"""Pillow's filters by their numbers in files."""

DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "ViT": {"resample": 2, "size": 224},
        "DeiT": {"resample": 3, "size": 256, "do_center_crop": True, "crop_size": 224},
    }
)
"""Defaults of transformers' processors, by the beginning of their names."""
NAMES = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")

DONE = (
    "do_resize",
    "size",
    "resample",
    "do_center_crop",
    "crop_size",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
)
WITHOUT_EFFECT = (
    "image_processor_type",  # read below, as the next one
    "feature_extractor_type",
    "do_convert_rgb",  # images are RGB from the start
    "default_to_square",
    "data_format",
    "input_data_format",
    "return_tensors",
    "device",
    "disable_grouping",
    "processor_class",
    "_processor_class",
    "_valid_processor_keys",
    "pad_size",  # without effect unless do_pad is on
)


class ImageSize(msgspec.Struct, frozen=True):
    """A size in pixels."""

    height: int
    width: int


class Preprocessing(msgspec.Struct, frozen=True):
    """Steps on an RGB image, in this order; None: left out.

    resize: to this size, or where `shortest` is set its shorter side to so many pixels, by the filter of this
    number. crop: out of the middle, with a black edge where the image is smaller. rescale: a factor.
    normalize: mean and standard deviation of each channel.
    """

    resize: ImageSize | None = None
    shortest: int | None = None
    resample: int = 2
    crop: ImageSize | None = None
    rescale: float | None = None
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def result(self) -> ImageSize | None:
        """The size of the result; None where it depends on the image."""
        return self.crop or self.resize


def read_preprocessing(folder: Path, architecture: str, side: int) -> Preprocessing | None:
    """Reads the steps from a model's directory; None where it has no file.

    architecture: the class that saved the model, which selects the processor where the file does not name
    one. side: pixels of the square images that the model reads. Raises UserError, naming file and key, for
    unsupported steps, and for images of another size.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    fields = Fields(file, read_json(file))
    for key, default in DEFAULTS[_kind(fields, architecture)].items():
        fields = fields.defaulting(key, default)
    _refuse_others(fields)
    found = _steps(fields)
    if found.result is not None and found.result != ImageSize(side, side):
        key = "size" if found.crop is None else "crop_size"
        made = f"{found.result.height}x{found.result.width}"
        raise fields.error(key, f"makes images of {made}; the model's config.json has image_size {side}")
    return found


def _kind(fields: Fields, architecture: str) -> str:
    """Returns the processor's key in DEFAULTS."""
    for key in ("image_processor_type", "feature_extractor_type"):
        if fields.has(key):
            name = fields.text(key)
            known = {f"{kind}{end}": kind for kind in DEFAULTS for end in NAMES}
            if name not in known:
                allowed = ", ".join(f"{kind}{NAMES[0]}" for kind in DEFAULTS)
                raise fields.error(key, f"{shown(repr(name), 60)} is not supported (known: {allowed})")
            return known[name]
    return next((kind for kind in DEFAULTS if architecture.startswith(f"{kind}For")), next(iter(DEFAULTS)))


def _refuse_others(fields: Fields) -> None:
    """Raises UserError for keys that are not implemented, unless they are off or null."""
    for key, value in fields.values.items():
        if key not in DONE and key not in WITHOUT_EFFECT and value is not None and value is not False:
            raise fields.error(key, "is not supported: images would be made otherwise than the model expects")


def _steps(fields: Fields) -> Preprocessing:
    crop = _square(fields, "crop_size") if fields.flag("do_center_crop") else None
    resize, shortest = _resized(fields) if fields.flag("do_resize", default=True) else (None, None)
    if shortest is not None and crop is None:
        raise fields.error("size", "shortest_edge without do_center_crop makes images of any size")
    rescale = fields.flag("do_rescale", default=True)
    normalize = fields.flag("do_normalize", default=True)
    resample = fields.integer("resample", max(RESAMPLING), least=0)
    return Preprocessing(
        resize=resize,
        shortest=shortest,
        resample=resample,
        crop=crop,
        rescale=fields.number("rescale_factor", 1e-6, 1e3, BYTE) if rescale else None,
        normalize=(_channels(fields, "image_mean", MEAN), _deviations(fields)) if normalize else None,
    )


def _resized(fields: Fields) -> tuple[ImageSize | None, int | None]:
    """Reads a size, or the pixels of the shorter side."""
    section = fields.section("size") if isinstance(fields.values.get("size"), dict) else None
    given = [] if section is None else [key for key, value in section.values.items() if value is not None]
    if section is not None and given == ["shortest_edge"]:
        return None, section.integer("shortest_edge", MAX_SIDE)
    return _square(fields, "size"), None


def _square(fields: Fields, key: str) -> ImageSize:
    """Reads {"height": ..., "width": ...}, or one number for both."""
    if not isinstance(fields.values.get(key), dict):
        side = fields.integer(key, MAX_SIDE)
        return ImageSize(side, side)
    section = fields.section(key)
    assert section is not None
    for other in section.values.keys() - {"height", "width"}:
        if section.has(other):
            raise section.error(other, "is not supported (known: height, width; of size shortest_edge)")
    return ImageSize(section.integer("height", MAX_SIDE), section.integer("width", MAX_SIDE))


def _channels(fields: Fields, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Reads one number a channel, or one for all channels."""
    if not fields.has(key):
        return default
    if not isinstance(fields.values[key], list):
        return (fields.number(key, -1e6, 1e6),) * COLOURS
    return fields.numbers(key, COLOURS, -1e6, 1e6)


def _deviations(fields: Fields) -> tuple[float, ...]:
    found = _channels(fields, "image_std", STD)
    if 0.0 in found:
        raise fields.error("image_std", "must not be 0")
    return found


def wrong_size(height: int, width: int, wanted: ImageSize) -> UserError:
    """Returns the error for an image that no step resizes to the model's size."""
    return UserError(
        f"the image has {width}x{height} pixels; this model's preprocessing does not resize, and it reads "
        f"{wanted.width}x{wanted.height}"
    )
