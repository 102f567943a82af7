"""Images as files, good and hostile, and small vision models on disk."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from tests.parity.encoder_expected import load_expected

SIZE = 56
"""Pixels a side that the model of `write_vit` reads."""
STEPS = {"image_processor_type": "ViTImageProcessor", "size": {"height": SIZE, "width": SIZE}, "resample": 3}
LABELS = ("cat", "dog", "bird", "fish", "none")


def write_vit(folder: Path, case: str = "vit-image", steps: dict[str, object] | None = None) -> Path:
    """Writes one of the models whose logits are compared with transformers', ready to be served."""
    folder.mkdir(parents=True, exist_ok=True)
    load_expected(case).write(folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = dict(enumerate(LABELS))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(STEPS if steps is None else steps))
    return folder


def noise(width: int, height: int, bands: int = 3, seed: int = 0) -> np.ndarray:
    """Returns [height, width, bands], smooth enough for a JPEG."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 4), dtype=np.uint8), "RGBA")
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))[..., :bands]


def picture(width: int = 90, height: int = 70, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(noise(width, height, seed=seed)))


def encoded(image: Image.Image, name: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def data_uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def readable() -> dict[str, bytes]:
    """Returns odd images that transformers' processor reads, by name."""
    image = picture()
    rgba = Image.fromarray(np.ascontiguousarray(noise(90, 70, 4)))
    palette = image.quantize(64)
    palette.info["transparency"] = 3
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [picture(seed=seed) for seed in range(3)]
    moving = {"save_all": True, "append_images": frames[1:]}
    grey16 = Image.fromarray(noise(90, 70)[..., 0].astype(np.uint16) * 257)
    return {
        "png": encoded(image),
        "jpeg": encoded(image, "JPEG", quality=90),
        "progressive": encoded(image, "JPEG", progressive=True),
        "turned": encoded(image, "JPEG", exif=turned.tobytes()),
        "cmyk": encoded(image.convert("CMYK"), "JPEG"),
        "webp": encoded(image, "WEBP", lossless=True),
        "gif": encoded(palette, "GIF", transparency=3),
        "palette": encoded(palette, transparency=3),
        "alpha": encoded(rgba),
        "grey": encoded(image.convert("L")),
        "grey-alpha": encoded(image.convert("LA")),
        "one bit": encoded(image.convert("1")),
        "16 bit": encoded(grey16),
        "moving gif": encoded(frames[0].quantize(), "GIF", **moving),
        "moving webp": encoded(frames[0], "WEBP", **moving),
        "moving png": encoded(frames[0], "PNG", **moving),
        "1 x 50,000": encoded(picture(1, 50_000)),
        "50,000 x 1": encoded(picture(50_000, 1)),
        "one pixel": encoded(picture(1, 1)),
        "before a zip": encoded(image) + b"PK\x03\x04" + b"\0" * 500,
        "before html": encoded(image, "GIF") + b"<script>alert(1)</script>",
    }


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, rows: bytes = b"") -> bytes:
    """Returns a PNG with the given chunks, and possibly incomplete rows."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@cache
def zeros(count: int) -> bytes:
    """Returns `count` bytes, deflated a thousandfold."""
    return zlib.compress(bytes(count), 9)


def hostile() -> dict[str, bytes]:
    """Returns images that are refused, by name."""
    good = encoded(picture())
    many = [picture(16, 16, seed) for seed in range(2)]
    gif = bytearray(encoded(many[0].quantize(), "GIF", save_all=True, append_images=many[1:]))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    return {
        "nothing": b"",
        "a text": b"hello" * 50,
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/"/></svg>',
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n/x {x} def x\n",
        "bmp": encoded(picture(8, 8), "BMP"),
        "tiff": encoded(picture(8, 8), "TIFF"),
        "ico": encoded(picture(16, 16), "ICO"),
        "zip": b"PK\x03\x04" + b"\0" * 500,
        "pdf": b"%PDF-1.4\n" + good,
        "cut png": good[: len(good) // 2],
        "cut head": good[:20],
        "cut jpeg": encoded(picture(), "JPEG")[:300],
        "cut webp": encoded(picture(), "WEBP")[:100],
        "bomb": png(30_000, 30_000, rows=zeros(3_000_000)),
        "flat bomb": png(2**31 - 1, 1, rows=zeros(1_000_000)),
        "no rows": png(64, 64),
        "text bomb": png(4, 4, chunk(b"zTXt", b"a\0\0" + zeros(80_000_000)), rows=zeros(52)),
        "itxt bomb": png(4, 4, chunk(b"iTXt", b"a\0\x01\0\0\0" + zeros(80_000_000)), rows=zeros(52)),
        "large gif": bytes(gif),
    }
