"""Quantised weights: the messages of `corepipe serve` on them, and answers from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import httpx
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.cli.start.announce import of_weights
from corepipe.models import registry
from tests.models import ggufs
from tests.models.test_quantized import quantised_model
from tests.parity.families import TINY as FAMILIES
from tests.servers import run, served


def first_answer(url: str) -> str:
    body = {"model": "m", "prompt": "a b c", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=None)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def said(folder: Path, dtype: str) -> str:
    """The line of a server's start, which has answered besides."""
    with served(folder, "--served-model-name", "m", "--dtype", dtype, "--verbose") as server:
        (line,) = (line for line in server.stderr if line.startswith("weights:"))
        first_answer(server.url)
    return line.removesuffix("\n")


KEPT = [("int8", "int8"), ("bf16", "bf16"), ("int8-weights", "int8")]
OF_FOUR_BITS = [
    ("Q4_0", "Q4_0 kept as they are, other quantised ones as int8"),
    ("MXFP4", "MXFP4 quantised again, as int4"),
]


@pytest.mark.parametrize(("dtype", "kept"), KEPT)
def test_what_becomes_of_them_is_said(tmp_path: Path, dtype: str, kept: str) -> None:
    folder = quantised_model(tmp_path / "m")
    line = f"weights: int8 with a scale a channel -> read as fp32, stored as {kept}"
    assert of_weights(registry.load(folder), dtype) == line


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [pytest.param(*case, marks=pytest.mark.slow) if case != KEPT[0] else case for case in KEPT],
)
def test_the_start_says_what_becomes_of_them(tmp_path: Path, dtype: str, kept: str) -> None:
    folder = quantised_model(tmp_path / "m")
    assert said(folder, dtype) == f"weights: int8 with a scale a channel -> read as fp32, stored as {kept}"


def test_blocks_of_a_gguf_file_are_named_and_plain_weights_are_not(tmp_path: Path) -> None:
    ggufs.convert(FAMILIES / "llama2", tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_0)
    told = of_weights(registry.load(tmp_path / "m.gguf"), "int8")
    assert told is not None
    assert told.startswith("weights: Q8_0 -> read as fp32")
    assert of_weights(registry.load(FAMILIES / "llama2"), "int8") is None


@pytest.mark.parametrize(("blocks", "kept"), OF_FOUR_BITS)
def test_blocks_of_four_bits_are_kept_where_they_can_be(tmp_path: Path, blocks: str, kept: str) -> None:
    ggufs.convert(FAMILIES / "llama2", tmp_path / "m.gguf", gguf.GGMLQuantizationType[blocks])
    assert of_weights(registry.load(tmp_path / "m.gguf"), "int4-weights") == f"weights: {blocks} -> {kept}"


@pytest.mark.parametrize(
    ("blocks", "kept"), [OF_FOUR_BITS[0], pytest.param(*OF_FOUR_BITS[1], marks=pytest.mark.slow)]
)
def test_a_file_of_four_bits_is_kept_as_it_is_on_a_grid(tmp_path: Path, blocks: str, kept: str) -> None:
    ggufs.convert(FAMILIES / "llama2", tmp_path / "m.gguf", gguf.GGMLQuantizationType[blocks])
    assert said(tmp_path / "m.gguf", "int4-weights") == f"weights: {blocks} -> {kept}"


def test_another_method_ends_it_with_2_and_one_line(tmp_path: Path) -> None:
    shutil.copytree(FAMILIES / "llama2", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "quip", "bits": 4}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    done = run("serve", tmp_path / "m", "--port", 0)
    assert done.returncode == 2
    assert done.stderr == (
        f"corepipe: {tmp_path / 'm' / 'config.json'}: quantization_config.quant_method quip is not supported "
        "(known: fp8, fbgemm_fp8, compressed-tensors, gptq, awq, mxfp4): use the unquantised weights, or a "
        "GGUF file\n"
    )


def test_weights_that_contradict_it_end_it_with_2_and_one_line(tmp_path: Path) -> None:
    """Before anything is packed."""

    folder = quantised_model(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.down_proj.weight_scale"]
    save_file(tensors, folder / "model.safetensors")
    done = run("serve", folder, "--port", 0)
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"corepipe: {folder / 'model.safetensors'}: tensor model.layers.0.mlp.down_proj.weight has no scale: "
        "model.layers.0.mlp.down_proj.weight_scale is missing\n"
    )
