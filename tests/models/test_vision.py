"""Images preprocessed bit for bit as transformers does it; others, and unsupported steps, are refused."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from corepipe.errors import UserError
from corepipe.models.vision.decoding import open_image, pixels_of
from corepipe.models.vision.preprocessing import ImageSize, Preprocessing, read_preprocessing
from corepipe.models.vision.reader import ImageReader, ImageSetting
from tests.pictures import encoded, hostile, picture, readable

WANTED = ImageSize(48, 48)
STEPS = Preprocessing(resize=WANTED, resample=3, rescale=1 / 255, normalize=((0.5,) * 3, (0.25,) * 3))
GOOD, HOSTILE = readable(), hostile()
MEMORY = 400 << 20
"""The most bytes that the process of an image may have used."""


def read(config: dict[str, object], folder: Path, side: int = 48, name: str = "ViT") -> Preprocessing:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    found = read_preprocessing(folder, f"{name}ForImageClassification", side)
    assert found is not None
    return found


CONFIGS: list[tuple[type, dict[str, object], int]] = [
    (ViTImageProcessorPil, {}, 224),
    (ViTImageProcessorPil, {"size": 48, "resample": 3}, 48),
    (ViTImageProcessorPil, {"size": 48, "do_normalize": False, "rescale_factor": 1 / 128}, 48),
    (ViTImageProcessorPil, {"size": 48, "do_rescale": False, "image_mean": [9, 8, 7]}, 48),
    (DeiTImageProcessorPil, {}, 224),
    (DeiTImageProcessorPil, {"size": {"shortest_edge": 40}, "crop_size": 33, "resample": 1}, 33),
    (DeiTImageProcessorPil, {"size": 30, "crop_size": 47}, 47),
    (DeiTImageProcessorPil, {"do_resize": False, "crop_size": {"height": 65, "width": 65}}, 65),
]


@pytest.mark.parametrize(("processor", "options", "side"), CONFIGS)
def test_every_bit_is_transformers(processor: type, options: dict, side: int, tmp_path: Path) -> None:
    theirs = processor(**options)
    theirs.save_pretrained(tmp_path)
    steps = read_preprocessing(tmp_path, "", side)
    assert steps is not None
    for width, height in ((90, 70), (side, side), (301, 18), (1, 1), (1, 700), (33, 47)):
        data = encoded(picture(width, height))
        wanted = theirs(load_image(Image.open(io.BytesIO(data))), return_tensors="np")["pixel_values"][0]
        found = pixels_of(open_image(data), steps, ImageSize(side, side))
        assert found.dtype == np.float32
        assert np.array_equal(found, wanted), (width, height)


@pytest.mark.parametrize(
    ("config", "name", "same"),
    [
        ({"size": 48, "image_mean": [0.5] * 3}, "ViT", {"resize": WANTED, "resample": 2}),
        ({"size": 48, "crop_size": 48}, "DeiT", {"resize": WANTED, "resample": 3, "crop": WANTED}),
        ({"feature_extractor_type": "DeiTFeatureExtractor", "crop_size": 48}, "ViT", {"crop": WANTED}),
        ({"size": 48, "do_pad": False, "do_convert_rgb": True, "data_format": "channels_first"}, "ViT", {}),
    ],
)
def test_files_as_they_were_written_once(config: dict, name: str, same: dict, tmp_path: Path) -> None:
    found = read(config, tmp_path, name=name)
    assert {key: getattr(found, key) for key in same} == same


PUBLISHED: list[tuple[type, dict[str, object]]] = [
    (ViTImageProcessorPil, {"do_normalize": True, "do_resize": True, "image_std": [0.5] * 3, "size": 224}),
    (
        DeiTImageProcessorPil,
        {
            "feature_extractor_type": "DeiTFeatureExtractor",
            "do_center_crop": True,
            "crop_size": 224,
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "resample": 3,
            "size": 256,
        },
    ),
]


@pytest.mark.parametrize(("processor", "config"), PUBLISHED)
def test_files_of_the_first_checkpoints_mean_the_same(processor: type, config: dict, tmp_path: Path) -> None:
    steps = read(config, tmp_path, 224)
    theirs = processor.from_pretrained(tmp_path)
    data = encoded(picture(131, 77))
    wanted = theirs(load_image(Image.open(io.BytesIO(data))), return_tensors="np")["pixel_values"][0]
    assert np.array_equal(pixels_of(open_image(data), steps, ImageSize(224, 224)), wanted)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "image_processor_type 'CLIPImageProcessor' is not"),
        ({"do_pad": True}, "do_pad is not supported"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order is not supported"),
        ({"crop_pct": 0.9}, "crop_pct is not supported"),
        ({"size": 32}, "size makes images of 32x32; the model's config.json has image_size 48"),
        ({"size": 48, "crop_size": 47, "do_center_crop": True}, "crop_size makes images of 47x47"),
        ({"size": {"height": 48, "width": 50}}, "size makes images of 48x50"),
        ({"size": {"shortest_edge": 48}}, "size shortest_edge without do_center_crop"),
        ({"size": {"longest_edge": 48}}, "size.longest_edge is not supported"),
        ({"size": {"height": 48}}, "size.width is missing"),
        ({"size": "48"}, "size must be an integer"),
        ({"size": 10**9}, "size must be an integer"),
        ({"resample": 9}, "resample must be an integer from 0 to 5"),
        ({"size": 48, "image_std": [1, 0, 1]}, "image_std must not be 0"),
        ({"size": 48, "image_mean": [1, 2]}, "image_mean must be a list of 3 numbers"),
        ({"size": 48, "do_resize": "yes"}, "do_resize must be true or false"),
    ],
)
def test_what_is_not_done_is_refused_by_its_key(config: dict, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"preprocessor_config\.json: ") as refused:
        read(config, tmp_path)
    assert why in refused.value.message


@pytest.fixture(scope="module")
def reader() -> Iterator[ImageReader]:
    with contextlib.closing(ImageReader(ImageSetting(STEPS, WANTED), processes=1)) as reader:
        yield reader


@pytest.mark.parametrize("name", GOOD)
def test_odd_images_are_what_transformers_makes_of_them(name: str, reader: ImageReader) -> None:
    theirs = ViTImageProcessorPil(size=48, resample=3, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    wanted = theirs(load_image(Image.open(io.BytesIO(GOOD[name]))), return_tensors="np")["pixel_values"][0]
    found = np.frombuffer(reader.read(GOOD[name]).pixels, "<f4").reshape(3, 48, 48)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused_and_need_no_memory(name: str, reader: ImageReader) -> None:
    with pytest.raises(UserError, match=r"^it (is|has|cannot|takes) ") as refused:
        reader.read(HOSTILE[name])
    assert len(refused.value.message) < 200
    (process,) = reader._started
    assert psutil.Process(process.pid).memory_info().rss < MEMORY
    assert len(reader.read(GOOD["png"]).pixels) == 4 * 3 * 48 * 48


def test_what_takes_too_long_ends_its_process_alone() -> None:
    large = encoded(picture(3000, 3000), "WEBP")
    with contextlib.closing(ImageReader(ImageSetting(STEPS, WANTED), 1, cpu_seconds=0.02)) as reader:
        with pytest.raises(UserError, match=r"takes more than 0\.02 s of processor time"):
            reader.read(large)
        assert len(reader.read(encoded(picture(9, 9))).pixels) == 4 * 3 * 48 * 48
