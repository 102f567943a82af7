"""Reads of a model's directory: nothing outside it, nothing endless, and errors of one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from corepipe.errors import UserError, shown
from corepipe.models import registry
from corepipe.models.checkpoints.files import check_links, read_bytes, regular_size
from tests.parity.families import TINY


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY / "llama2", tmp_path / "home" / "model"))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"]
)
@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "../gone", "../model-too/config.json"])
def test_a_link_out_of_the_directory_is_refused(model: Path, name: str, target: str) -> None:
    (model.parent / "secret").write_text("{{ 'the secret' }}")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(target)
    with pytest.raises(UserError, match=f"{name}: is a link out of the model's directory"):
        registry.load(model)


def test_links_inside_the_directory_and_to_it_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "config.json").rename(model / "real.json")
    (model / "config.json").symlink_to("real.json")
    (tmp_path / "alias").symlink_to(model)
    assert registry.load(tmp_path / "alias").config == registry.load(TINY / "llama2").config


def test_the_hub_cache_s_own_links_are_followed_and_no_others(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "0123abcd"
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    loaded = registry.load(snapshot)
    loaded.check(loaded.graph(registry.FORMATS["fp32"]))
    (snapshot / "extra.json").symlink_to("../../refs")
    with pytest.raises(UserError, match=r"extra\.json: is a link out"):
        check_links(snapshot)


def test_a_link_to_itself_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("config.json")
    with pytest.raises(UserError):
        registry.load(tmp_path)


def load_all(path: Path) -> None:
    loaded = registry.load(path)
    loaded.tokenizer()
    assert loaded.checkpoint.names()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_pipe_is_refused_and_not_waited_for(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(UserError):
        load_all(model)
    with pytest.raises(UserError, match="is not a regular file"):
        regular_size(model / name)


def test_what_is_no_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        regular_size(tmp_path / "gone")
    with pytest.raises(UserError, match="cannot be read"):
        regular_size(tmp_path / "nul\0")
    with pytest.raises(UserError, match="not a regular file"):
        regular_size(tmp_path)


def test_a_file_may_be_as_large_as_its_kind_and_no_larger(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    assert read_bytes(tmp_path / "file", 10, "a thing") == bytes(10)
    with pytest.raises(UserError, match="larger than 9 bytes, not a thing"):
        read_bytes(tmp_path / "file", 9, "a thing")


def test_what_is_quoted_is_one_short_printable_line() -> None:
    assert shown("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert shown("x" * 100, 5) == "xxxxx..."
    assert shown(["\ud800"]) == r"['\ud800']"
    assert shown("\ud800") == r"\ud800"
