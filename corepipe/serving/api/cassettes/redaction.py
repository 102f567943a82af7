"""Rules by which parts of requests and answers are replaced before anything reaches the disk.

A file of rules is TOML:

    [[rule]]
    path = "$.user"                      # a value, by its JSON path
    replace = "USER"                     # default: REDACTED

    [[rule]]
    regex = 'sk-[A-Za-z0-9]{20,}'        # in every text, or in the texts at a path

What a stream says piece by piece is looked through as one text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from corepipe.errors import UserError
from corepipe.serving.api.bodies.protocol import decode
from corepipe.serving.api.cassettes.exchange import Answered, Asked, Exchange, Piece, events_of
from corepipe.serving.api.cassettes.json_path import parse_path
from corepipe.serving.api.cassettes.replacement import DEFAULT, Part, Rule, blank, echoes, redact, without
from corepipe.serving.api.http.errors import invalid

MAX_FILE = 64 * 1024
"""Bytes of a file of rules."""


class Redaction:
    """What becomes of requests and answers by some rules; without rules, nothing."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def asked(self, asked: Asked) -> Asked:
        """The request as it is recorded, and as it is looked for.  Raises ApiError for what is no object."""
        if not self._rules:
            return asked
        path = without(asked.path, self._rules)
        if asked.method == "GET":
            return replace(asked, path=path)
        body = decode(asked.body)
        try:
            changed = redact([body], self._rules)
        except RecursionError:
            raise invalid("The body is nested too deeply.", code="invalid_json") from None
        return replace(asked, path=path, body=msgspec.json.encode(body) if changed else asked.body)

    def exchange(self, exchange: Exchange) -> Exchange:
        """The exchange as it is recorded.  Raises ApiError where the request's body is no object."""
        if not self._rules:
            return exchange
        asked = self.asked(exchange.asked)
        replaced = asked != exchange.asked
        rules = (*self._rules, *echoes(exchange.asked.body, self._rules))
        return replace(exchange, asked=asked, answered=_answered(exchange.answered, rules, replaced=replaced))


def _answered(answered: Answered, rules: Sequence[Rule], *, replaced: bool) -> Answered:
    """`replaced`: something of the request was."""
    pieces = [
        (piece.at_ms, [Part(part, streamed=answered.streamed) for part in _parts(answered, piece)])
        for piece in answered.pieces
    ]
    parts = [part for _, of_piece in pieces for part in of_piece]
    values = [part.value for part in parts if part.value is not None]
    if redact(values, rules) or replaced:
        for value in values:
            blank(value, refused=answered.status >= 400)
    told = (Piece(at, b"".join(part.told(rules) for part in of_piece)) for at, of_piece in pieces)
    return replace(answered, pieces=tuple(told))


def _parts(answered: Answered, piece: Piece) -> list[bytes]:
    return events_of(piece.data) if answered.streamed else [piece.data]


def read_redaction(file: Path | None) -> Redaction:
    """The rules of a file; none of no file.  Raises UserError that names the rule at fault."""
    if file is None:
        return Redaction()
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ValueError(f"is larger than {MAX_FILE} bytes")
        return Redaction(_rules(tomllib.loads(data.decode())))
    except OSError as error:
        raise UserError(f"--record-redact {file}: {error.strerror}", "record_redact") from error
    except ValueError as error:  # tomllib's and UTF-8's among them
        raise UserError(f"--record-redact {file}: {error}", "record_redact") from error


def _rules(document: Mapping[str, Any]) -> Iterator[Rule]:
    tables = document.get("rule")
    if set(document) != {"rule"} or not isinstance(tables, list):
        raise ValueError("wants tables named [[rule]], and nothing else")
    for number, table in enumerate(tables, 1):
        try:
            yield _rule(table)
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from error


def _rule(table: Mapping[str, Any]) -> Rule:
    if unknown := sorted(set(table) - {"path", "regex", "replace"}):
        raise ValueError(f"{unknown[0]!r} is none of path, regex and replace")
    if not {"path", "regex"} & set(table):
        raise ValueError("wants a path, a regex or both")
    for name, value in table.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is a text")
    path = parse_path(table["path"]) if "path" in table else None
    return Rule(path, _regex(table["regex"]) if "regex" in table else None, table.get("replace", DEFAULT))


def _regex(text: str) -> re.Pattern[str]:
    try:
        regex = re.compile(text)
    except re.error as error:
        raise ValueError(f"regex {text!r}: {error}") from error
    if regex.search(""):
        raise ValueError(f"regex {text!r} fits where there is nothing")
    return regex
