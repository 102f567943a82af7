"""The digest's files are those that were written once: pinned, small, and not writable again."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.digest import parts
from tests.digest.models import ROOT
from tests.digest.parts import Part, PartExists

ENTRIES = {"b": '{"x":[1,2.5]}', "a": "{}"}


def test_files_are_the_pinned_ones() -> None:
    there = {path.name: path for path in parts.DATA.glob("*.xz")}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()}
    assert found == parts.sums()


@pytest.mark.parametrize("kind", parts.KINDS)
def test_each_kind_has_its_part(kind: str) -> None:
    assert parts.numbers(kind)
    assert parts.latest(kind).entries


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in parts.DATA.iterdir()) <= parts.MOST_BYTES


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = parts.write(Part("programs", 1, "", ENTRIES, [["op", "Add", "add"]]), tmp_path)
    found = parts.latest("programs", tmp_path)
    assert (found.entries, found.names) == (ENTRIES, [["op", "Add", "add"]])
    assert found.entry("b") == {"x": [1, 2.5]}
    assert parts.sums(tmp_path) == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}


def test_the_same_entries_give_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for order in (ENTRIES, dict(reversed(ENTRIES.items()))):
        directory = tmp_path / str(len(written))
        directory.mkdir()
        written.append(parts.write(Part("tokens", 1, "", order), directory).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("kind", parts.KINDS)
def test_a_part_is_not_written_again(tmp_path: Path, kind: str) -> None:
    parts.write(Part(kind, 1, "", ENTRIES), tmp_path)
    for number in (1, 2):
        with pytest.raises(PartExists):
            parts.write(Part(kind, number, "", ENTRIES), tmp_path)


def test_recalibrated_times_get_a_new_part_that_holds(tmp_path: Path) -> None:
    parts.write(Part("times", 1, "", ENTRIES), tmp_path)
    first = parts.path_of("times", 1, tmp_path).read_bytes()
    parts.write(Part("times", 2, "constants of v3 fitted anew", {"a": "1"}), tmp_path)
    found = parts.latest("times", tmp_path)
    assert (found.number, found.reason, found.entries) == (2, "constants of v3 fitted anew", {"a": "1"})
    assert parts.path_of("times", 1, tmp_path).read_bytes() == first
    for kind in ("programs", "tokens"):
        parts.write(Part(kind, 1, "", ENTRIES), tmp_path)
        with pytest.raises(PartExists):
            parts.next_number(kind, "a reason", tmp_path)


def test_the_writer_refuses_what_is_there(tmp_path: Path) -> None:
    parts.write(Part("times", 1, "", ENTRIES), tmp_path)
    command = [sys.executable, "-m", "tests.digest.write", "times", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("digest: times-1.jsonl.xz is there and is never regenerated: ")
