"""The fuzz targets on their seeds and some mutations of them; `make fuzz` runs for longer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from corepipe.answers import parts
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.text import chat_sandbox
from fuzz.checks import FoundError
from fuzz.seeds import seeds
from fuzz.targets import TARGETS

MUTATIONS = {
    "tokenizer": 150,
    "tokenizer_config": 300,
    "gguf_file": 800,
    "gguf_checkpoint": 800,
    "config": 800,
    "template": 600,
    "tool_calls": 600,
}
"""The numbers of mutations of the slower targets; the others get DEFAULT."""
DEFAULT = 1500
INTERESTING = (
    b"\0",
    b"\xff",
    b"-1",
    b"0",
    b"9" * 30,
    b"null",
    b"[]",
    b"{}",
    b'"',
    b"\xff" * 8,
    b"1e999",
    b"..",
)


def mutations(target: str, count: int) -> Iterator[bytes]:
    """Yields the seeds, then `count` of them with a few bytes changed, cut, doubled or taken from another."""
    rng, corpus = random.Random(f"corepipe {target}"), seeds(target)
    yield from corpus
    for _ in range(count):
        data = bytearray(rng.choice(corpus))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at, length = rng.randrange(len(data) + 1), rng.choice((0, 1, 1, 2, 8, 20))
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            new = rng.choice(
                (rng.randbytes(length), rng.choice(INTERESTING), other[start : start + length], b"")
            )
            data[at : at + length] = new
        yield bytes(data)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target: str) -> None:
    for data in mutations(target, MUTATIONS.get(target, DEFAULT)):
        try:
            TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"{target} fails with {data!r}") from error


def test_a_template_that_reaches_out_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox.CompiledTemplate, "render", lambda *_: Path("/dev/null").open().close())
    with pytest.raises(FoundError, match=r"the template reached .*open"):
        TARGETS["template"](b"x")


def test_a_message_that_harms_a_terminal_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("two\nlines")

    monkeypatch.setattr(registry, "architecture", refuse)
    with pytest.raises(FoundError, match="no printable line"):
        TARGETS["config"](b"{}")


def test_a_stop_string_that_is_shown_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.StopStrings, "_undecided", lambda *_: 0)
    with pytest.raises(FoundError):
        TARGETS["stop_strings"](b"\x01\x01abxab")
