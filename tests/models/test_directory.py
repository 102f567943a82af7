"""Directories of models, hostile ones among them: what is served under which name, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models import directory
from corepipe.models.directory import ModelsDirectories
from tests.servers import TINY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with one model, which may be read again at once."""
    folder = tmp_path / "models"
    shutil.copytree(TINY, folder / "good")
    return folder


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "FRESH_SECONDS", 0.0)


def config(folder: Path, **values: object) -> Path:
    """Makes a model's directory with nothing but its configuration."""
    folder.mkdir()
    known = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**known, **values}))
    return folder


def test_models_are_known_by_their_names(root: Path) -> None:
    config(root / "also-good")
    (root / "notes").mkdir()
    (root / "README.md").write_text("no model")
    models = ModelsDirectories([root])
    assert [*models.look()] == ["also-good", "good"]
    assert models.refused == {}
    assert models.look()["good"].task.task.value == "generate"
    shutil.rmtree(root / "good")
    assert [*models.look()] == ["also-good"]


def test_of_two_directories_the_first_counts(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(root, other)
    config(other / "more")
    found = ModelsDirectories([root, other]).look()
    assert {name: one.path.parent for name, one in found.items()} == {"good": root, "more": other}
    with pytest.raises(UserError, match="no such directory"):
        ModelsDirectories([tmp_path / "nowhere"])


def test_what_changes_is_read_again_and_nothing_else_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, read = ModelsDirectories([root]), []
    real = models._described
    monkeypatch.setattr(models, "_described", lambda *given: read.append(given[0]) or real(*given))
    models.look()
    models.look()
    assert read == ["good"]
    (root / "good" / "config.json").write_text("{")
    assert "good" not in models.look()
    assert read == ["good", "good"]


HOSTILE = {
    "broken": "JSON",
    "nested": "JSON",
    "unknown": "model_type",
    "code": "never run",
    "pickled": "pickle",
    "huge": "larger than",
    "out": "link out of the directory",
    "links-out": "link out of",
    "bad name": "has a name",
    "short": "short.gguf",
}


def test_hostile_entries_hide_no_other_and_say_why(root: Path, tmp_path: Path) -> None:
    (config(root / "broken") / "config.json").write_text("{")
    (config(root / "nested") / "config.json").write_text("[" * 200_000)
    config(root / "unknown", model_type="nothing")
    config(root / "code", auto_map={"AutoModel": "evil.py"})
    (config(root / "pickled") / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with (config(root / "huge") / "config.json").open("r+b") as stream:
        stream.truncate(1 << 33)  # without a byte on the disk
    outside = tmp_path / "outside"
    shutil.copytree(TINY, outside)
    (root / "out").symlink_to(outside)
    linked = config(root / "links-out")
    (linked / "tokenizer.json").symlink_to("/etc/passwd")
    config(root / "bad name")
    (root / "short.gguf").write_bytes(b"GGUF\x03")
    (root / "loop").symlink_to("loop")
    (root / "inner").mkdir()
    (root / "inner" / "again").symlink_to("..")
    os.mkfifo(root / "inner" / "config.json")
    models = ModelsDirectories([root])
    assert [*models.look()] == ["good"]
    assert models.refused.keys() == HOSTILE.keys()
    for name, words in HOSTILE.items():
        assert words in models.refused[name], (name, models.refused[name])


def test_names_are_looked_up_and_never_joined_to_a_path(root: Path) -> None:
    found = ModelsDirectories([root]).look()
    for name in ("../models/good", "good/", "./good", str(root / "good"), "good\0", ""):
        assert name not in found
