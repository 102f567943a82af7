"""Hashes of a model's files, compared with a list beside them, the hub cache's names, or a pinned one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models.checkpoints import integrity
from corepipe.models.checkpoints.integrity import SUMS, verify
from corepipe.models.hub import DEFAULT_MODEL
from corepipe.models.packaged import PACKAGED
from tests.parity.families import TINY


def quiet(what: str, done: float) -> None:
    assert what == "verifying the model's files"
    assert 0 <= done <= 1


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Makes a model with hashes as `sha256sum *` writes them."""
    folder = Path(shutil.copytree(TINY / "tinyllama", tmp_path / "model"))
    files = sorted(folder.iterdir())
    (folder / SUMS).write_text("".join(f"{sha256(file)}  {file.name}\n" for file in files))
    return folder


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_what_is_listed_passes_also_with_other_spellings(model: Path) -> None:
    verify(model, quiet)
    (model / SUMS).write_text((model / SUMS).read_text().replace("  ", " *./"))
    verify(model, quiet)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00001-of-00003.safetensors"])
def test_one_bit_is_enough(model: Path, name: str) -> None:
    flip(model / name)
    with pytest.raises(UserError, match=rf"--verify: .*{name} is not the file that it should be") as caught:
        verify(model, quiet)
    assert caught.value.param == "verify"


def test_a_file_that_is_not_listed_is_refused(model: Path) -> None:
    (model / "chat_template.jinja").write_text("x")
    with pytest.raises(UserError, match=r"chat_template\.jinja has no known hash.*sha256sum \* > SHA256SUMS"):
        verify(model, quiet)


def test_templates_by_name_are_looked_at(model: Path) -> None:
    file = model / "additional_chat_templates" / "tool_use.jinja"
    file.parent.mkdir()
    file.write_text("x")
    with pytest.raises(UserError, match=r"tool_use\.jinja has no known hash"):
        verify(model, quiet)
    with (model / SUMS).open("a") as sums:
        sums.write(f"{sha256(file)}  additional_chat_templates/{file.name}\n")
    verify(model, quiet)


@pytest.mark.parametrize("line", ["x", "0" * 64, f"{'0' * 64}  ../other", f"{'0' * 63}  a", "\x1b[2J"])
def test_a_list_that_is_none_is_refused(model: Path, line: str) -> None:
    (model / SUMS).write_text(line + "\n")
    with pytest.raises(UserError, match="is no line of sha256sum") as caught:
        verify(model, quiet)
    assert caught.value.message.isprintable()


def test_without_any_hash_nothing_is_verified(model: Path) -> None:
    (model / SUMS).unlink()
    with pytest.raises(UserError, match="has no known hash"):
        verify(model, quiet)


def test_blobs_of_the_hub_are_named_by_their_hashes(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "0123abcd"
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in sorted((TINY / "llama2").glob("[cmt]*.*")):
        data = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        blob = blobs / (sha256(file) if file.suffix == ".safetensors" else git)
        blob.write_bytes(data)
        (snapshot / file.name).symlink_to(blob)
    verify(snapshot, quiet)
    for name in ("model.safetensors", "config.json"):
        whole = (snapshot / name).read_bytes()
        flip((snapshot / name).resolve())
        with pytest.raises(UserError, match=f"{name} is not the file"):
            verify(snapshot, quiet)
        (snapshot / name).resolve().write_bytes(whole)


def test_files_of_modules_are_looked_at_and_those_of_other_directories_are_not(model: Path) -> None:
    for name in ("1_Pooling", "original"):
        (model / name).mkdir()
        (model / name / "config.json").write_text("{}")
    verify(model, quiet)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (model / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling/config.json", "modules.json"):
        with pytest.raises(UserError, match=f"{name} has no known hash"):
            verify(model, quiet)
        with (model / SUMS).open("a") as sums:
            sums.write(f"{sha256(model / name)}  {name}\n")
    verify(model, quiet)
    flip(model / "1_Pooling" / "config.json")
    with pytest.raises(UserError, match=r"1_Pooling/config\.json is not the file"):
        verify(model, quiet)


def test_a_packaged_directory_has_pinned_hashes_under_its_name_alone(tmp_path: Path) -> None:
    pinned = PACKAGED["all-minilm-l6-v2"]
    for name in ("all-minilm-l6-v2", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / pinned.file).write_bytes(b"something else")
    with pytest.raises(UserError, match=f"not {pinned.sha256}"):
        verify(tmp_path / "all-minilm-l6-v2", quiet)
    with pytest.raises(UserError, match="no known hash"):
        verify(tmp_path / "other", quiet)


def test_a_packaged_model_has_a_pinned_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / PACKAGED[DEFAULT_MODEL].file
    file.write_bytes(b"something else")
    with pytest.raises(UserError, match=f"not {PACKAGED[DEFAULT_MODEL].sha256}"):
        verify(file, quiet)
    monkeypatch.setattr(integrity, "PACKAGED", {})
    with pytest.raises(UserError, match="no known hash"):
        verify(file, quiet)
