"""Every encoder and head on small random models, compared with transformers' stored results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from corepipe.models.registry import load
from corepipe.neuron.compile.placement import Placement
from tests.parity import encoder_cases, formula
from tests.parity.checkpoints import BOUND
from tests.parity.encode import Encoder
from tests.parity.encoder_cases import EncoderCase
from tests.parity.encoder_expected import DATA, difference, load_expected

CASES = {case.name: case for case in encoder_cases.CASES}
NEAR = 0.05
"""The bound for ranks that round to int8 and bf16 before they add."""
STORED_BYTES = 20_000
"""The most bytes stored for a family."""


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = load_expected(name)
    assert difference(CASES[name], expected, expected.write(tmp_path), "native") <= BOUND


@pytest.mark.parametrize(
    "name",
    [
        "albert-base",
        "bert-classes",
        "modernbert-other-classes",
        "mpnet-base",
        "roberta-tokens",
        "vit-odd",
        "deit-taught",
    ],
)
def test_the_twin_has_the_same(name: str, tmp_path: Path) -> None:
    expected = load_expected(name)
    assert difference(CASES[name], expected, expected.write(tmp_path), "reference") <= BOUND


@pytest.mark.parametrize("fmt", ["fp32", "int8"])
@pytest.mark.parametrize(
    "name",
    [
        "bert-classes",
        "camembert-base",
        "electra-tokens",
        "modernbert-classes",
        "mpnet-base",
        "vit-image",
        "deit-taught",
    ],
)
def test_a_text_has_the_same_bits_alone_and_among_others(name: str, fmt: str, tmp_path: Path) -> None:
    case: EncoderCase = CASES[name]
    model = load(load_expected(name).write(tmp_path))
    encoder = Encoder(model, fmt, model.task())
    try:
        texts = case.inputs()
        together = encoder.values(texts)
        alone = [encoder.values([text])[0] for text in texts]
    finally:
        encoder.close()
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one, other)


def values(name: str, folder: Path, fmt: str, placement: Placement) -> np.ndarray:
    case = CASES[name]
    model = load(load_expected(name).write(folder))
    encoder = Encoder(model, fmt, model.task(), placement=placement)
    try:
        return np.concatenate(encoder.values(case.inputs()))
    finally:
        encoder.close()


@pytest.mark.parametrize("fmt", ["fp32", "int8"])
@pytest.mark.parametrize(
    "name", ["bert-classes", "albert-base", "modernbert-tokens", "roberta-tokens", "vit-odd", "deit-taught"]
)
def test_a_pipeline_has_the_same_bits_and_ranks_nearly(name: str, fmt: str, tmp_path: Path) -> None:
    whole, stages, ranks = (
        values(name, tmp_path, fmt, placement)
        for placement in (Placement(), Placement(pipeline=2), Placement(tensor=2))
    )
    assert np.array_equal(whole, stages)
    assert np.abs(ranks - whole).max() <= (BOUND if fmt == "fp32" else NEAR) * np.ptp(whole)


def spelled_as_of_old(name: str) -> str:
    """Returns the name in TensorFlow's checkpoints, and those of a model with a head."""
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return f"bert.{old}"


def test_checkpoints_with_old_names_are_read(tmp_path: Path) -> None:
    """The names have a prefix, gamma and beta, and the numbers of positions stored like weights."""
    expected = load_expected("bert-base")
    old: dict[str, np.ndarray] = {
        spelled_as_of_old(name): formula.weight(name, shape) for name, shape in expected.shapes.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(encoder_cases.POSITIONS, dtype=np.int64)[None]
    save_file(old, expected.write(tmp_path) / "model.safetensors")
    assert difference(CASES["bert-base"], expected, tmp_path, "native") <= BOUND


def test_little_is_stored() -> None:
    sizes: dict[str, int] = {}
    for file in DATA.glob("*.npz"):
        family = file.stem.rpartition("-")[0]
        sizes[family] = sizes.get(family, 0) + file.stat().st_size
    assert max(sizes.values()) <= STORED_BYTES
