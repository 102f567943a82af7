"""Quantised safetensors: compressed-tensors' and ml_dtypes' values; unsupported ones refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints import quantized
from corepipe.models.checkpoints.quantization import read_quantization
from corepipe.models.checkpoints.quantized import QuantizedCheckpoint
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.models.fields import Fields
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.numerics.arithmetic import quantize_weight
from tests.models.rewritten import change_config, with_projections
from tests.parity.families import DATA, TINY

MADE = DATA / "quantized"
"""Cases made by tests/parity/make_quantized.py, with compressed-tensors."""
CASES = {
    "float-tensor": "fp8 with a scale a tensor",
    "float-channel": "fp8 with a scale a channel",
    "int-channel": "int8 with a scale a channel",
    "int-channel-zero": "int8 with a scale a channel with zero points",
    "pack-group": "int4 in groups of 16",
    "pack-group-zero": "int4 in groups of 16 with zero points",
    "pack-ordered": "int4 in groups of 16",
    "pack-channel-3": "int3 with a scale a channel",
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BLOCKS = {**FP8, "weight_block_size": [8, 16]}


def fields(config: object) -> Fields:
    return Fields(Path("config.json"), {"quantization_config": config})


def checkpoint(path: Path, config: object) -> QuantizedCheckpoint:
    quantization = read_quantization(fields(config))
    assert quantization is not None
    return QuantizedCheckpoint(SafetensorsCheckpoint(path), quantization)


def made(name: str) -> tuple[Path, dict]:
    return MADE / f"{name}.safetensors", json.loads((MADE / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("piece", [1, 200, 1 << 20])
def test_weights_are_what_compressed_tensors_says(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized, "PIECE", piece)
    path, config = made(name)
    read = checkpoint(path, config)
    assert set(read.names()) == {"m.weight", "expected"}
    assert read.shape("m.weight") == read.shape("expected")
    got = read.read("m.weight")
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, read.read("expected"))
    assert read.stored_as.kinds == CASES[name]


def fp8(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.float8_e4m3fn)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    block=st.tuples(st.integers(1, 50), st.integers(1, 80)),
    name=st.sampled_from(["weight_scale_inv", "weight_scale"]),
    seed=st.integers(0, 99),
)
def test_blocks_of_any_size_have_their_scales(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    block: tuple[int, int],
    name: str,
    seed: int,
) -> None:
    """ml_dtypes decodes, and np.kron spreads the scales; the last blocks may be smaller."""
    rng = np.random.default_rng(seed)
    values = fp8(rng.standard_normal((rows, columns)) * 50)
    high, wide = block
    scale = rng.uniform(0.01, 2, (-(-rows // high), -(-columns // wide))).astype(np.float32)
    path = tmp_path_factory.getbasetemp() / "blocks.safetensors"
    save_file({"m.weight": values, f"m.{name}": scale}, path)
    spread = np.kron(scale, np.ones((high, wide), np.float32))[:rows, :columns]
    read = checkpoint(path, {**FP8, "weight_block_size": list(block)})
    np.testing.assert_array_equal(read.read("m.weight"), values.astype(np.float32) * spread)
    assert list(read.names()) == ["m.weight"]


def test_every_fp8_number_is_read(tmp_path: Path) -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    values = codes.view(ml_dtypes.float8_e4m3fn).reshape(2, -1)
    save_file({"m.weight": values, "m.weight_scale": np.array(3, np.float32)}, tmp_path / "m.safetensors")
    got = checkpoint(tmp_path / "m.safetensors", FP8).read("m.weight")
    np.testing.assert_array_equal(got, values.astype(np.float32) * np.float32(3))
    assert got.max() == 448 * 3


def test_what_is_not_a_number_is_damage(tmp_path: Path) -> None:
    """The cases are the two NaNs of fp8, and a scale that overflows."""
    values = fp8(np.ones((2, 4)))
    for code, scale in ((0x7F, 1.0), (0xFF, 1.0), (0x38, 3e38)):
        values.view(np.uint8)[1, 2] = code
        values.view(np.uint8)[0, 0] = 0x7E
        tensors = {"m.weight": values, "m.weight_scale": np.array([scale], np.float32)}
        save_file(tensors, tmp_path / "m.safetensors")
        with pytest.raises(UserError, match=r"m\.safetensors: tensor m\.weight holds .*damaged"):
            checkpoint(tmp_path / "m.safetensors", FP8).read("m.weight")


def quantised_model(folder: Path) -> Path:
    """Writes the tiny llama2 in int8 with a scale a channel, as in llm-compressor's W8A8."""

    def stored(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
        scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        return {name: np.round(values / scale).astype(np.int8), f"{name}_scale": scale}

    return with_projections(folder, made("int-channel")[1], stored)


def test_a_whole_model_in_w8a8(tmp_path: Path) -> None:
    model, original = registry.load(quantised_model(tmp_path / "m")), registry.load(TINY / "llama2")
    model.check(model.graph(FORMATS["int8"]))
    assert model.checkpoint.stored_as.kinds == "int8 with a scale a channel"
    stored = load_file(tmp_path / "m" / "model.safetensors")
    for name in original.checkpoint.names():
        got, near = model.checkpoint.read(name), original.checkpoint.read(name)
        if "proj" not in name:
            np.testing.assert_array_equal(got, near)
            continue
        np.testing.assert_array_equal(got, stored[name].astype(np.float32) * stored[f"{name}_scale"])
        again, _ = quantize_weight(got)
        np.testing.assert_array_equal(again, stored[name])  # what --dtype int8 stores
        assert np.abs(got - near).max() <= stored[f"{name}_scale"].max() / 2 * 1.001


CT = {"quant_method": "compressed-tensors"}


def weights(**told: object) -> dict[str, object]:
    return {**CT, "config_groups": {"a": {"weights": told}}}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"quant_method": "quip"},
            r"\.quant_method quip is not supported \(known: fp8, fbgemm_fp8, compressed",
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method bitsandbytes is not"),
        ({"quant_method": "quark"}, "quant_method quark is not supported"),
        ({"quant_method": "x\n" * 99}, r"quant_method x\\nx"),
        ({"quant_method": 4}, "quant_method must be a string"),
        ({"bits": 4}, "quantization_config.quant_method is missing"),
        ([], "quantization_config must be an object"),
        ({**FP8, "fmt": "e5m2"}, r"quantization_config\.fmt 'e5m2' is not supported"),
        ({**FP8, "weight_block_size": [128]}, r"weight_block_size must be two integers"),
        ({**FP8, "weight_block_size": [0, 128]}, r"weight_block_size must be two integers"),
        ({**FP8, "weight_block_size": [True, 128]}, r"weight_block_size must be two integers"),
        ({**CT, "format": "marlin-24"}, r"\.format 'marlin-24' is not supported \(known: float-quantized"),
        ({**CT, "format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized' is not supported"),
        ({**CT, "quantization_status": "frozen"}, "quantization_status 'frozen' is not supported"),
        (CT, "config_groups must be an object of 1 to 64 groups"),
        ({**CT, "sparsity_config": {"format": "sparse-24-bitmask"}}, r"format 'sparse-24-bitmask' is not"),
        ({**CT, "config_groups": {"a": {}}, "transform_config": {"u": {}}}, "transform_config is not"),
        (weights(num_bits=4, type="float"), r"config_groups\.a\.weights\.num_bits 4 of type float"),
        (weights(strategy="tensor_group"), r"weights\.strategy 'tensor_group' is not supported"),
        (weights(strategy="group"), r"config_groups\.a\.weights\.group_size is missing"),
        ({**CT, "config_groups": {str(i): {} for i in range(65)}}, "1 to 64 groups"),
    ],
)
def test_other_methods_are_refused_by_name(config: object, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        read_quantization(fields(config))
    assert caught.value.message.startswith("config.json: ")
    assert caught.value.message.isprintable()


def test_the_older_key_is_read_and_plain_models_have_none() -> None:
    config = made("pack-group")[1]
    del config["quant_method"]
    old = read_quantization(Fields(Path("config.json"), {"compression_config": config}))
    assert old is not None
    assert [str(scheme) for scheme in old.schemes] == ["int4 in groups of 16"]
    assert read_quantization(Fields(Path("config.json"), {})) is None


def spoilt(name: str, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Returns the tensors of a case with some replaced or (None) removed; _ stands for a dot."""
    tensors = load_file(MADE / f"{name}.safetensors")
    for key, value in changes.items():
        if value is None:
            del tensors[f"m.{key}"]
        else:
            tensors[f"m.{key}"] = value
    return tensors


CONTRADICTIONS = [
    ("int-channel", {"weight_scale": None}, r"tensor m\.weight has no scale: m\.weight_scale is missing"),
    (
        "int-channel",
        {"weight_scale": np.ones((6, 1), np.float32)},
        r"tensor m\.weight \(I8 for \[12, 64\], scales \[6, 1\]\) contradicts quantization_config, which "
        "describes int8 with a scale a channel",
    ),
    ("int-channel", {"weight": fp8(np.ones((12, 64)))}, r"\(F8_E4M3 for \[12, 64\].*contradicts"),
    ("int-channel", {"weight": np.ones((2, 6, 64), np.int8)}, "quantised weights have two dimensions"),
    ("int-channel-zero", {"weight_zero_point": None}, "contradicts quantization_config"),
    ("pack-group", {"weight_shape": None}, r"m\.weight_packed has no shape: m\.weight_shape is missing"),
    ("pack-group", {"weight_shape": np.array([12, 640])}, r"\(I32 for \[12, 640\].*contradicts"),
    ("pack-group", {"weight_shape": np.array([-12, 64])}, r"m\.weight_shape is \[-12, 64\]"),
    ("pack-group", {"weight_shape": np.array([12, 1 << 40])}, r"m\.weight_shape is \[12, 1099511627776\]"),
    ("pack-group", {"weight_shape": np.array([0, 64])}, r"has shape \[0, 64\]: quantised weights have two"),
    ("pack-group", {"weight_shape": np.array([1.0, 2.0])}, "weight_shape is not two integers"),
    ("pack-group", {"weight_scale": np.ones((12, 8), np.float32)}, r"scales \[12, 8\]\) contradicts"),
    ("pack-ordered", {"weight_g_idx": None}, "contradicts quantization_config"),
    ("pack-ordered", {"weight_g_idx": np.zeros(63, np.int32)}, "contradicts quantization_config"),
]


@pytest.mark.parametrize(("name", "changes", "why"), CONTRADICTIONS)
def test_what_contradicts_its_configuration_is_refused_by_tensor(
    name: str, changes: dict[str, np.ndarray | None], why: str, tmp_path: Path
) -> None:
    save_file(spoilt(name, **changes), tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=why) as caught:
        checkpoint(tmp_path / "m.safetensors", made(name)[1])
    assert caught.value.message.startswith(f"{tmp_path / 'm.safetensors'}: tensor m.weight")


def test_an_order_that_names_no_group_is_refused(tmp_path: Path) -> None:
    order = np.full(64, 4, np.int32)
    save_file(spoilt("pack-ordered", weight_g_idx=order), tmp_path / "m.safetensors")
    read = checkpoint(tmp_path / "m.safetensors", made("pack-ordered")[1])
    with pytest.raises(UserError, match=r"m\.safetensors: tensor m\.weight_g_idx names none of the 4 groups"):
        read.read("m.weight")


@pytest.mark.parametrize(
    ("part", "spoilt_by"), [("weight", np.full((12, 64), 99, np.int8)), ("weight_zero_point", np.int8(-9))]
)
def test_integers_of_more_bits_than_the_configuration_says_are_refused(
    part: str, spoilt_by: np.ndarray, tmp_path: Path
) -> None:
    """They are refused both in weights read as floats, and in those that four-bit formats would keep."""
    name = "int-channel-zero"
    tensors = {
        key: np.clip(values, -8, 7) if values.dtype == np.int8 else values
        for key, values in spoilt(name).items()
    }
    tensors[f"m.{part}"] = np.broadcast_to(spoilt_by, tensors[f"m.{part}"].shape).copy()
    save_file(tensors, tmp_path / "m.safetensors")
    config = made(name)[1]
    for group in config["config_groups"].values():
        group["weights"]["num_bits"] = 4
    read = checkpoint(tmp_path / "m.safetensors", config)
    why = rf"m\.safetensors: tensor m\.{part} has integers from .*, and quantization_config says 4 bits$"
    for reading in (read.read, read.stored):
        with pytest.raises(UserError, match=why):
            reading("m.weight")


def test_a_configuration_without_quantised_weights_is_refused(tmp_path: Path) -> None:
    save_file({"m.weight": np.ones((4, 4), np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(
        UserError, match=r"config\.json: quantization_config says fp8, but no weight in .* is"
    ):
        checkpoint(tmp_path / "m.safetensors", FP8)


def test_quantised_weights_without_a_configuration_are_refused_before_they_are_read(tmp_path: Path) -> None:
    folder = quantised_model(tmp_path / "m")
    change_config(folder, quantization_config=None)
    model = registry.load(folder)
    with pytest.raises(UserError, match=r"model\.safetensors: tensor model\.layers\.0\..* is I8; known: F32"):
        model.check(model.graph(FORMATS["int8"]))
