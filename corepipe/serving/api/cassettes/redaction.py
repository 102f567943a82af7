"""Rules by which parts of requests and answers are replaced before anything reaches the disk.

A file of rules is TOML:

    [[rule]]
    path = "$.user"                      # a value, by its JSON path
    replace = "USER"                     # default: REDACTED

    [[rule]]
    regex = 'sk-[A-Za-z0-9]{20,}'        # in every text, or in the texts at a path

Texts that a stream sends in pieces are searched as one text.
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
from corepipe.serving.api.bodies.reading import decode
from corepipe.serving.api.cassettes.exchange import (
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
    events_of,
)
from corepipe.serving.api.cassettes.replacement import (
    DEFAULT,
    RedactablePart,
    RedactionRule,
    blank,
    echoes,
    parse_path,
    redact,
    redacted_text,
)
from corepipe.serving.api.http.errors import invalid

MAX_FILE = 64 * 1024
"""The most bytes of a file of rules."""


class Redaction:
    """Redacts requests and answers by rules; without rules it changes nothing."""

    def __init__(self, rules: Iterable[RedactionRule] = ()) -> None:
        self._rules = tuple(rules)

    def redacted_request(self, request: RecordedRequest) -> RecordedRequest:
        """Returns a request as it is recorded and searched for.  Raises ApiError if the body is no object."""
        if not self._rules:
            return request
        path = redacted_text(request.path, self._rules)
        if request.method == "GET":
            return replace(request, path=path)
        body = decode(request.body)
        try:
            changed = redact([body], self._rules)
        except RecursionError:
            raise invalid("The body is nested too deeply.", code="invalid_json") from None
        return replace(request, path=path, body=msgspec.json.encode(body) if changed else request.body)

    def exchange(self, exchange: RecordedExchange) -> RecordedExchange:
        """Returns an exchange as it is recorded.  Raises ApiError if the request's body is no object."""
        if not self._rules:
            return exchange
        request = self.redacted_request(exchange.request)
        replaced = request != exchange.request
        rules = (*self._rules, *echoes(exchange.request.body, self._rules))
        return replace(exchange, request=request, answer=_answered(exchange.answer, rules, replaced=replaced))


def _answered(answer: RecordedAnswer, rules: Sequence[RedactionRule], *, replaced: bool) -> RecordedAnswer:
    """Redacts an answer; `replaced`: whether anything in the request was replaced."""
    pieces = [
        (piece.at_ms, [RedactablePart(part, streamed=answer.streamed) for part in _parts(answer, piece)])
        for piece in answer.pieces
    ]
    parts = [part for _, of_piece in pieces for part in of_piece]
    values = [part.value for part in parts if part.value is not None]
    if redact(values, rules) or replaced:
        for value in values:
            blank(value, refused=answer.status >= 400)
    redacted = (AnswerPiece(at, b"".join(one.redacted(rules) for one in of_piece)) for at, of_piece in pieces)
    return replace(answer, pieces=tuple(redacted))


def _parts(answer: RecordedAnswer, piece: AnswerPiece) -> list[bytes]:
    return events_of(piece.data) if answer.streamed else [piece.data]


def read_redaction(file: Path | None) -> Redaction:
    """Reads the rules of a file; no file means no rules.  Raises UserError that names the rule at fault."""
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


def _rules(document: Mapping[str, Any]) -> Iterator[RedactionRule]:
    tables = document.get("rule")
    if set(document) != {"rule"} or not isinstance(tables, list):
        raise ValueError("must have tables named [[rule]], and nothing else")
    for number, table in enumerate(tables, 1):
        try:
            yield _rule(table)
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from error


def _rule(table: Mapping[str, Any]) -> RedactionRule:
    if unknown := sorted(set(table) - {"path", "regex", "replace"}):
        raise ValueError(f"{unknown[0]!r} is none of path, regex and replace")
    if not {"path", "regex"} & set(table):
        raise ValueError("must have a path, a regex or both")
    for name, value in table.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a text")
    path = parse_path(table["path"]) if "path" in table else None
    return RedactionRule(
        path, _regex(table["regex"]) if "regex" in table else None, table.get("replace", DEFAULT)
    )


def _regex(text: str) -> re.Pattern[str]:
    try:
        regex = re.compile(text)
    except re.error as error:
        raise ValueError(f"regex {text!r}: {error}") from error
    if regex.search(""):
        raise ValueError(f"regex {text!r} matches an empty text; make it match at least one character")
    return regex
