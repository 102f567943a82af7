"""MXFP4 checkpoints: ml_dtypes' values, a model equal to its floats, damage reported by name."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.mxfp4 import Mxfp4Checkpoint
from corepipe.models.checkpoints.quantization import Quantization
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.models.fields import Fields
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.numerics.int4 import ALL
from tests.models.rewritten import change_config
from tests.parity import expected

CONFIG = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def checkpoint(path: Path, **tensors: np.ndarray) -> Mxfp4Checkpoint:
    file = path / "model.safetensors"
    save_file(tensors, file)
    quantization = Quantization(Fields(Path("config.json"), CONFIG), "mxfp4", ())
    return Mxfp4Checkpoint(SafetensorsCheckpoint(file), quantization)


def floats(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Computes values by ml_dtypes' e2m1 and e8m0."""
    halves = np.stack([blocks & 15, blocks >> 4], axis=-1)
    values = halves.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    wide = values * scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[..., None, None]
    return wide.reshape(*blocks.shape[:2], -1).astype(np.float32)


def test_every_byte_and_every_scale_is_exact(tmp_path: Path) -> None:
    blocks = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    blocks = np.broadcast_to(blocks, (2, 125, 16, 16)).copy()
    scales = np.repeat(np.arange(250, dtype=np.uint8), 16).reshape(2, 125, 16)
    found = checkpoint(tmp_path, m_blocks=blocks, m_scales=scales, other=np.ones(3, np.float32))
    wanted = floats(blocks, scales)
    assert found.shape("m_blocks") == wanted.shape == (2, 125, 512)
    np.testing.assert_array_equal(found.read("m_blocks"), wanted)
    np.testing.assert_array_equal(found.read("m_blocks", slice(1, 2)), wanted[1:])
    np.testing.assert_array_equal(found.stored("m_blocks", ALL), wanted)
    assert set(found.names()) == {"m_blocks", "other"}
    assert found.read("other").tolist() == [1, 1, 1]
    assert found.by_rows("m_blocks")
    assert found.stored_as.kinds == "mxfp4 in groups of 32"


BLOCKS, SCALES = np.full((2, 3, 4, 16), 0x77, np.uint8), np.full((2, 3, 4), 127, np.uint8)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"m_blocks": BLOCKS}, "tensor m_blocks has no scales: m_scales is missing"),
        ({"m_blocks": BLOCKS, "m_scales": SCALES[:1]}, r"m_scales has shape \[1, 3, 4\], not \[2, 3, 4\]"),
        ({"m_blocks": BLOCKS[..., :8].copy(), "m_scales": SCALES}, r"m_blocks has shape \[2, 3, 4, 8\]"),
        ({"m_blocks": BLOCKS[0], "m_scales": SCALES[0]}, r"m_blocks has shape \[3, 4, 16\]"),
        ({"m_blocks": BLOCKS.astype(np.float32), "m_scales": SCALES}, "m_blocks is F32; MXFP4 is kept in"),
        ({"m_blocks": BLOCKS, "m_scales": SCALES.view(np.int8)}, "m_scales is I8; MXFP4 is kept in"),
        ({"m": SCALES}, "quantization_config says mxfp4, but no weight in .* is quantised"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    tensors: dict[str, np.ndarray], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why):
        checkpoint(tmp_path, **tensors)


@pytest.mark.parametrize("scale", [253, 255])
def test_what_is_no_finite_number_is_damage(scale: int, tmp_path: Path) -> None:
    """Six times 2^126 overflows, and the NaN code is no number."""
    scales = SCALES.copy()
    scales[1, 2, 3] = scale
    found = checkpoint(tmp_path, m_blocks=BLOCKS, m_scales=scales)
    assert found.read("m_blocks", slice(0, 1)).max() == 6
    with pytest.raises(UserError, match=r"tensor m_blocks holds (inf|nan|5.*e.38): the weights are damaged"):
        found.read("m_blocks")


def packed_model(folder: Path) -> tuple[Path, Path]:
    """Writes a gpt-oss with experts in MXFP4, and the same with floats, as transformers keeps either."""
    small = expected.load("gpt_oss")
    both = [small.write(folder / name) for name in ("floats", "mxfp4")]
    rng = np.random.default_rng(5)
    for layer in range(small.config["num_hidden_layers"]):
        for name, rows, width in (("gate_up_proj", 2 * 128, 96), ("down_proj", 96, 128)):
            blocks = rng.integers(0, 256, (7, rows, width // 32, 16), np.uint8)
            scales = rng.integers(121, 126, blocks.shape[:3]).astype(np.uint8)
            module = f"model.layers.{layer}.mlp.experts.{name}"
            wide = np.ascontiguousarray(floats(blocks, scales).swapaxes(1, 2))
            bias = rng.standard_normal((7, rows)).astype(np.float32)
            change(both[0], {module: wide, f"{module}_bias": bias})
            change(
                both[1],
                {f"{module}_blocks": blocks, f"{module}_scales": scales, f"{module}_bias": bias},
                module,
            )
    for path, more in zip(both, ({}, CONFIG), strict=True):
        change_config(path, intermediate_size=128, **more)
    return both[0], both[1]


def change(folder: Path, new: dict[str, np.ndarray], *gone: str) -> None:
    file = folder / "model.safetensors"
    tensors = {name: value for name, value in load_file(file).items() if name not in gone}
    save_file({**tensors, **new}, file)


def test_a_model_has_the_weights_of_its_floats(tmp_path: Path) -> None:
    plain, packed = map(registry.load, packed_model(tmp_path))
    for fmt in ("fp32", "bf16", "int8", "int4-weights"):
        graph = plain.graph(FORMATS[fmt], 64)
        packed.check(graph)
        one, other = (InMemoryWeights(graph, model.checkpoint.read) for model in (plain, packed))
        for spec in graph.weights():
            np.testing.assert_array_equal(one[spec.name].data, other[spec.name].data, err_msg=spec.name)
