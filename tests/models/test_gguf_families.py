"""GGUF files of single architectures: what their metadata does not say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from corepipe.models.checkpoints.gguf_config import config_fields
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES
from corepipe.models.fields import Fields
from tests.models import ggufs
from tests.parity import expected


def fields_of(name: str, folder: Path, **keys: object) -> Fields:
    """Returns the configuration of a small model's file with some keys replaced; __ stands for a dot."""
    changed = {key.replace("__", "."): value for key, value in keys.items()}
    path = ggufs.write(expected.load(name).write(folder / "m"), folder / "m.gguf", keys=changed)
    return config_fields(GgufFile(path))


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_gemmas_largest_models_have_another_scale(name: str, layers: int, tmp_path: Path) -> None:
    """llama.cpp recognises them by the number of layers: 46 of Gemma 2 27B, 62 of Gemma 3 27B."""
    wide = {"attention__key_length": 80, "attention__value_length": 80}
    for count, scale in ((layers, 96 // 4), (layers - 1, 80)):
        fields = fields_of(name, tmp_path, block_count=count, **wide)
        assert fields.integer("query_pre_attn_scalar", 1000) == scale


def test_a_file_without_a_window_has_none_anywhere(tmp_path: Path) -> None:
    none = {"attention__sliding_window": None, "attention__sliding_window_pattern": None}
    fields = fields_of("gemma3_text", tmp_path, **none)
    assert set(registry.Architecture("x", fields).config.windows) == {None}


def test_a_window_of_0_is_none(tmp_path: Path) -> None:
    assert not fields_of("phi3", tmp_path, attention__sliding_window=0).has("sliding_window")


@pytest.mark.parametrize(
    ("arch", "why"),
    [
        ("mamba", r"general\.architecture 'mamba' is not supported in a GGUF file \(known: llama, "),
        ("x\n", r"general\.architecture 'x\\n' is not supported"),
    ],
)
def test_other_architectures_are_refused_by_name(arch: str, why: str, tmp_path: Path) -> None:
    ggufs.close(gguf.GGUFWriter(tmp_path / "a.gguf", arch))
    with pytest.raises(UserError, match=why) as caught:
        registry.load(tmp_path / "a.gguf")
    assert str(tmp_path / "a.gguf") in caught.value.message


def test_a_scale_of_a_whole_tensor_is_refused(tmp_path: Path) -> None:
    """NVFP4 has such scales: the values of the blocks alone would be wrong."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.scale", np.ones(1, np.float32))
    ggufs.close(writer)
    with pytest.raises(UserError, match=r"a\.gguf: tensor blk\.0\.ffn_up\.scale: scales of whole tensors"):
        GgufCheckpoint(GgufFile(tmp_path / "a.gguf"), GGUF_FAMILIES["llama"], {"attn_q": 4, "attn_k": 2})
