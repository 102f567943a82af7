"""The texts that a vocabulary can write: compared with llguidance's masks, and refused before a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from corepipe.models.text.tokenizer import Tokenizer
from corepipe.structured.constraints import ConstraintError, StructuredOutputsParams, constraint_of
from corepipe.structured.grammars import grammar_of
from corepipe.structured.spelling import ANY_TEXT, Spelling
from tests.constrained.walk import vocabulary, walk

END = "<|end|>"
GONE = "\U00040000"
"""A code point of plane 4, which has no characters: SmolLM2 has no token for the byte F1."""


class Pieces:
    """A vocabulary of these tokens."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def added_tokens(self) -> Mapping[str, int]:
        return {}

    def token_bytes(self, token: int, /) -> bytes:
        return self._pieces[token]


def byte_level(missing: bytes) -> Tokenizer:
    """Makes a byte-level tokenizer without tokens for these bytes."""
    alphabet = [char for char, byte in _alphabet().items() if byte not in missing]
    backend = Backend(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True)])
    return Tokenizer(backend, {"eos_token": END}, None)


def _alphabet() -> dict[str, int]:
    """Returns GPT-2's characters for bytes: printable bytes as themselves, others from U+0100 on."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + at): byte for at, byte in enumerate(others)}


SOME = byte_level(b"\xf1\x04\xc3")


def test_a_vocabulary_that_has_every_byte_writes_everything() -> None:
    assert Spelling.of(Pieces(*(bytes([byte]) for byte in range(256)))) == ANY_TEXT
    assert Spelling.of(byte_level(b"")) == Spelling(added={END: 256})


def test_what_tokens_lack() -> None:
    assert Spelling.of(SOME) == Spelling(b"\x04\xc3\xf1", "", b"\x04\xc3\xf1", {END: 253})
    ascii_ = [bytes([byte]) for byte in range(128)]
    spelling = Spelling.of(Pieces(*ascii_, "ä".encode(), "nö".encode(), END.encode()))
    assert spelling.missing == bytes(range(128, 256))
    assert spelling.characters == "ä"
    assert set(range(128, 256)) - set(spelling.absent) == {*"äö".encode()}
    assert spelling.unwritten("äb") == ""
    assert spelling.unwritten("äöb") == "ö", "which no token is by itself"
    assert spelling.unwritten(f"a{GONE}b") == GONE


@given(st.characters(codec="utf-8"))
@example(GONE)
@example("ä")
@example("ö")
def test_a_character_is_written_where_llguidance_gets_to_its_end(char: str) -> None:
    """Its masks are the reference: with a choice of one text, some token is allowed up to the end."""
    grammar = grammar_of(constraint_of(StructuredOutputsParams(choice=[char])))
    matcher = llguidance.LLMatcher(vocabulary(SOME), grammar, log_level=0)
    text = b""
    while not matcher.is_stopped() and not matcher.is_error():
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        (token, *_) = np.flatnonzero(bits[: SOME.vocab_size])
        if token in SOME.eos_ids or not matcher.consume_token(int(token)):
            break
        text += SOME.token_bytes(int(token))
    assert (text == char.encode()) == (Spelling.of(SOME).unwritten(char) == "")


def refusal(**asked: Any) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        grammar_of(constraint_of(StructuredOutputsParams(**asked)), Spelling.of(SOME))
    assert caught.value.message.isprintable()
    assert caught.value.code == "unsupported_value"
    return caught.value


NAMED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "constant": ({"const": f"ab{GONE}"}, ("const",)),
    "inside a constant": ({"const": {"a": [1, {GONE: 2}]}}, ("const",)),
    "enum": ({"properties": {"a": {"enum": ["x", 5, f"x{GONE}"]}}}, ("properties", "a", "enum", "2")),
    "property": ({"properties": {f"a{GONE}": {}}}, ("properties", r"a\U00040000")),
    "required": ({"type": "object", "required": ["a", f"a{GONE}"]}, ("required",)),
    "referred": (
        {"$ref": "#/$defs/x", "$defs": {"x": {"items": {"const": GONE}}}},
        ("$defs", "x", "items", "const"),
    ),
    "one of two": ({"anyOf": [{"type": "null"}, {"const": GONE}]}, ("anyOf", "1", "const")),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_text_that_a_schema_names_is_refused_where_it_stands(name: str) -> None:
    schema, path = NAMED[name]
    error = refusal(json=schema)
    assert f"In context={path!r}, the model has no tokens for U+40000." in error.message
    assert error.param == "structured_outputs.json"
    assert grammar_of(constraint_of(StructuredOutputsParams(json=schema))), "other models have them"


def test_a_choice_is_refused_by_its_number() -> None:
    error = refusal(choice=["a", "€ö"])
    assert error.message == (
        "Invalid structured_outputs.choice: In context=('1',), the model has no tokens for U+00F6."
    )
    assert error.param == "structured_outputs.choice"


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": f"ab{GONE}?{GONE}c"},
        {"grammar": f'start: "a" B\nB: "{GONE}"'},
        {"json": {"type": "string", "pattern": f"^x{GONE}$"}},
    ],
    ids=str,
)
def test_what_begins_with_it_is_refused(asked: dict[str, Any]) -> None:
    assert "it needs characters that no token of the model has" in refusal(**asked).message


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": f"[{GONE}-\U00050000a]b"},
        {"regex": ".{2,4}"},
        {"choice": ["€", "b"]},
        {"json": {"const": "\x04 is written as an escape"}},
        {"json": {"$defs": {"unused": {"const": GONE}}, "type": "integer"}},
    ],
    ids=str,
)
def test_what_can_be_written_is_taken(asked: dict[str, Any]) -> None:
    constraint = constraint_of(StructuredOutputsParams(**asked))
    text, ended = walk(grammar_of(constraint, Spelling.of(SOME)), SOME, 1, 200)
    assert ended
    if asked.get("json", {}).get("const"):
        assert json.loads(text) == asked["json"]["const"]
