"""Tokenizers with patterns of their own: good ones pass, bad ones are named, known ones are not tried."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from corepipe.errors import UserError
from corepipe.models.text import tokenizer_trial
from corepipe.models.text.gguf_tokenizer import SPLITS
from corepipe.models.text.tokenizer_trial import try_tokenizer

MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}


def written(folder: Path, **parts: object) -> Path:
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": MODEL, **parts})
    )
    return folder


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)


@pytest.mark.usefixtures("without_processes")
@pytest.mark.parametrize(
    "parts",
    [{}, {"normalizer": {"type": "NFC"}}, *({"pre_tokenizer": split(p)} for s in SPLITS.values() for p in s)],
)
def test_what_has_no_pattern_or_a_known_one_is_not_tried(tmp_path: Path, parts: dict[str, object]) -> None:
    try_tokenizer(written(tmp_path, **parts))


@pytest.mark.usefixtures("without_processes")
def test_what_is_no_tokenizer_is_left_to_its_reader(tmp_path: Path) -> None:
    try_tokenizer(tmp_path)
    for text in ("[", "[]", "[" * 100_000, '{"pre_tokenizer": 3}'):
        (tmp_path / "tokenizer.json").write_text(text)
        try_tokenizer(tmp_path)


def test_a_pattern_of_ones_own_passes(tmp_path: Path) -> None:
    parts = {"type": "Sequence", "pretokenizers": [split(r"\d"), split(r"\w+|\s+|[^\w\s]+")]}
    try_tokenizer(written(tmp_path, pre_tokenizer=parts))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"pre_tokenizer": split("(a+)+$")}, "fails on some texts"),
        ({"normalizer": replace("(a|a)*[^a!]")}, "fails on some texts"),
        ({"pre_tokenizer": split("(a{1,12}){1,5}(?=b)")}, "takes more than 1 s over short texts"),
    ],
)
def test_a_pattern_that_backtracks_is_refused(
    tmp_path: Path, parts: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_trial, "CPU_SECONDS", 1)
    with pytest.raises(UserError, match=rf"tokenizer\.json: the tokenizer {why}"):
        try_tokenizer(written(tmp_path, **parts))
