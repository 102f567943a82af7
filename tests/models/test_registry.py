"""Paths that load() accepts and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.formats import FORMATS
from tests.models import ggufs
from tests.parity.families import TINY


def test_a_directory_is_named_after_itself_and_a_file_after_its_stem(tmp_path: Path) -> None:
    assert registry.load(TINY / "qwen2").name == "qwen2"
    ggufs.convert(TINY / "llama2", tmp_path / "small.gguf")
    assert registry.load(tmp_path / "small.gguf").name == "small"
    assert registry.load(tmp_path).name == "small"


def test_a_snapshot_of_the_hub_is_named_after_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--tiny-model" / "snapshots" / "0123abcd"
    shutil.copytree(TINY / "llama2", snapshot)
    assert registry.load(snapshot).name == "org/tiny-model"


def test_a_graph_needs_no_weights(tmp_path: Path) -> None:
    shutil.copy(TINY / "llama3" / "config.json", tmp_path)
    model = registry.load(tmp_path)
    graph = model.graph(FORMATS["int8"], 100)
    assert (graph.max_positions, graph.num_layers, graph.name) == (100, 2, tmp_path.name)
    with pytest.raises(UserError, match=r"0 .safetensors files"):
        model.check(graph)


@pytest.mark.parametrize("positions", [0, -1, 257])
def test_positions_beyond_the_model_s_are_refused(positions: int) -> None:
    with pytest.raises(UserError, match=f"llama3 has 256 positions, {positions} were requested"):
        registry.load(TINY / "llama3").graph(FORMATS["fp32"], positions)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "model.ckpt"])
def test_pickles_are_refused_by_name(tmp_path: Path, name: str) -> None:
    shutil.copy(TINY / "llama3" / "config.json", tmp_path)
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=f"{name}: pickled weights can run code"):
            registry.load(path)


def test_pickles_beside_safetensors_are_ignored(tmp_path: Path) -> None:
    shutil.copytree(TINY / "llama2", tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    model = registry.load(tmp_path / "model")
    model.check(model.graph(FORMATS["fp32"]))


def test_anything_else_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="no such file or directory"):
        registry.load(tmp_path / "gone")
    with pytest.raises(UserError, match=r"give the model's directory, or a \.gguf file"):
        registry.load(tmp_path / "notes.txt")
    with pytest.raises(UserError, match=r"neither a config\.json nor exactly one \.gguf file .0 found"):
        registry.load(tmp_path)
