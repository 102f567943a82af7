"""GGUF models in several files, which the gguf library writes as llama.cpp does, read as one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf_shards import open_gguf
from corepipe.models.checkpoints.integrity import verify
from tests.models import ggufs
from tests.parity.families import TINY


def written(folder: Path, name: str = "m", **split: object) -> list[Path]:
    """Writes a tiny Llama to files of up to eight tensors, or as `split` says."""
    ggufs.convert(TINY / "llama2", folder / f"{name}.gguf", **(split or {"split_max_tensors": 8}))
    return sorted(folder.glob(f"{name}-*.gguf"))


@pytest.mark.parametrize(
    "split", [{"split_max_tensors": 8}, {"split_max_tensors": 8, "small_first_shard": True}]
)
def test_several_files_are_the_one_that_was_split(split: dict[str, object], tmp_path: Path) -> None:
    files = written(tmp_path, **split)
    assert len(files) > 2
    whole, model = registry.load(TINY / "llama2").checkpoint, registry.load(files[0])
    assert model.name == "m"
    assert sorted(model.checkpoint.names()) == sorted(whole.names())
    for name in whole.names():
        np.testing.assert_array_equal(model.checkpoint.read(name), whole.read(name))
    stored = model._stored()
    assert {stored.file(name) for name in stored.names()} == set(files) - {
        files[0] if "small_first_shard" in split else None
    }
    assert model.tokenizer().encode("Hello there") == registry.load(TINY / "llama2").tokenizer().encode(
        "Hello there"
    )


@pytest.mark.parametrize("asked", ["the first", "the last", "the directory"])
def test_any_of_them_or_their_directory_is_the_model(asked: str, tmp_path: Path) -> None:
    files = written(tmp_path)
    path = {"the first": files[0], "the last": files[-1], "the directory": tmp_path}[asked]
    model = registry.load(path)
    assert (model.name, model.path) == ("m", files[0])
    assert model.checkpoint.fingerprint == registry.load(files[0]).checkpoint.fingerprint


@pytest.mark.parametrize("gone", [0, 1, -1])
def test_a_missing_file_is_named(gone: int, tmp_path: Path) -> None:
    files = written(tmp_path)
    files[gone].unlink()
    asked = [tmp_path, *(file for file in files if file.is_file())]
    for path in asked:
        with pytest.raises(UserError, match=rf"{files[gone].name}: is missing: a model in several files"):
            registry.load(path)


def test_other_models_beside_them_are_not_mixed_up(tmp_path: Path) -> None:
    files, _ = written(tmp_path), written(tmp_path, "other")
    with pytest.raises(UserError, match=r"neither a config\.json nor exactly one \.gguf file"):
        registry.load(tmp_path)
    registry.load(files[0])


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path)
    count = len(files)
    shutil.copy(files[2], files[1])
    with pytest.raises(UserError, match=rf"{files[1].name}: split\.no is 2, not 1: was it renamed"):
        open_gguf(files[0])
    renamed = tmp_path / "renamed.gguf"
    shutil.copy(files[0], renamed)
    with pytest.raises(UserError, match=rf"renamed\.gguf: is one of {count} files by its split\.count"):
        open_gguf(renamed)
    other = tmp_path / "fewer-00001-of-00001.gguf"
    shutil.copy(files[0], other)
    with pytest.raises(UserError, match=rf"is one of {count} files .* end with -00001-of-{count:05}"):
        open_gguf(other)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"split.tensors.count": 99}, r"split\.tensors\.count is 99, its files hold \d+"),
        ({"split.count": "two"}, r"split\.count is two, not a number"),
        ({"split.count": -1}, r"split\.count is -1, not a number"),
    ],
)
def test_counts_that_are_wrong_are_refused(
    changes: dict[str, object], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = written(tmp_path)
    first = type(open_gguf(files[0])).__mro__[1]
    read = first.__init__

    def changed(self: object, path: Path) -> None:
        read(self, path)
        self.metadata |= changes

    monkeypatch.setattr(first, "__init__", changed)
    with pytest.raises(UserError, match=why):
        open_gguf(files[0])


def test_a_whole_file_may_be_named_like_one_of_several(tmp_path: Path) -> None:
    ggufs.convert(TINY / "llama2", tmp_path / "m-00001-of-00002.gguf")
    assert registry.load(tmp_path).name == "m"


def test_all_of_them_are_verified(tmp_path: Path) -> None:
    files, looked = written(tmp_path), list[str]()
    sums = [f"{'0' * 64}  {file.name}" for file in files[1:]]
    (tmp_path / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    with pytest.raises(UserError, match=f"{files[0].name} has no known hash"):
        verify(files[1], lambda what, done: looked.append(what))
