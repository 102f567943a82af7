"""Traces of real services: the Mooncake, Azure and BurstGPT schemas, read as workloads and written.

- Mooncake: JSON lines with timestamp (ms), input_length, output_length and, if known, hash_ids: one for each
  512 tokens of the prompt; equal ids are equal blocks.
- Azure LLM inference: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
- BurstGPT: CSV with Timestamp (s), Model, Request tokens, Response tokens, ...

A trace starts when its first request comes.  A line that cannot be a request is an error, never skipped.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from math import inf
from pathlib import Path
from typing import Literal, TextIO

from corepipe.errors import UserError
from corepipe.planning.workload import Segment, Session, Turn, Workload

TraceFormat = Literal["mooncake", "azure", "burstgpt"]

MOONCAKE_BLOCK = 512
"""Tokens for which a hash id stands."""

LONGEST_HEAD = 1 << 16
"""Characters of a first line that is looked at."""

EPOCH = datetime(2023, 11, 16, tzinfo=UTC)
"""When traces that are written as Azure's begin, as its first one does."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "mooncake": ("timestamp", "input_length", "output_length"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
}
"""Of each schema: time, tokens in, tokens out."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a trace, and how to complain about it."""

    path: Path
    number: int
    fields: dict[str, object]
    schema: TraceFormat

    def error(self, field: str, what: str, remedy: str) -> UserError:
        return UserError(f"{self.path}, line {self.number}, {field}: {what}; {remedy}", "trace")

    def tokens(self, field: str) -> int:
        """A whole number of at least 1."""
        value = self._present(field)
        try:
            number = float(str(value))
        except ValueError:
            raise self.error(field, f"{value!r:.40} is no number", "give the number of tokens") from None
        if not number.is_integer() or number < 1:
            raise self.error(
                field, f"{value} tokens", "a request has at least 1; drop the line if it failed or was empty"
            )
        return int(number)

    def seconds(self, field: str, read: Callable[[str], float]) -> float:
        value = self._present(field)
        try:
            seconds = read(str(value))
        except ValueError:
            raise self.error(field, f"{value!r:.40} is no time", "give it as the other lines do") from None
        if not 0 <= seconds < float("inf"):
            raise self.error(field, f"{value} is before the start", "times count up from 0")
        return seconds

    def _present(self, field: str) -> object:
        value = self.fields.get(field)
        if value is None or value == "":
            raise self.error(field, "is missing", f"every line needs {', '.join(COLUMNS[self.schema])}")
        return value


def trace_format(path: Path, given: TraceFormat | None = None) -> TraceFormat:
    """What a file looks like, unless it is given.  Raises UserError where it looks like none of them."""
    if given is not None:
        return given
    with _opened(path) as file:
        head = " "
        while head.isspace():
            head = file.readline(LONGEST_HEAD)
    head = head.strip().lstrip("\ufeff")
    if not head:
        raise UserError(f"--trace {path}: it is empty; a trace has a request a line", "trace")
    if head.startswith("{"):
        return "mooncake"
    columns = next(csv.reader([head]), [])
    names: tuple[TraceFormat, ...] = ("azure", "burstgpt")
    for name in names:
        if set(COLUMNS[name][1:]) & set(columns):
            return name
    raise UserError(
        f"--trace {path}: its first line is of no known schema (mooncake, azure, burstgpt); "
        "say which with --trace-format",
        "trace",
    )


def trace_workload(
    path: Path,
    given: TraceFormat | None = None,
    limit: int | None = None,
    duration: float | None = None,
    speed: float = 1.0,
) -> Workload:
    """The requests of a file, at its times; no more than `limit`, and of the first `duration` seconds.

    speed: so many times as fast; `duration` is then of the faster trace.  The file is read as the stream is.
    Raises UserError for a file that cannot be read or is of no known
    schema; reading the stream raises it for a line that is no request.
    """
    if not 0 < speed < inf:
        raise UserError(f"--trace-speed must be above 0, not {speed}; 2 plays twice as fast", "trace_speed")
    schema = trace_format(path, given)
    hashed = schema == "mooncake"

    def sessions() -> Iterator[Session]:
        for number, session in enumerate(_sessions(path, schema)):
            start = (session.start or 0.0) / speed
            if number == limit or (duration is not None and start > duration):
                return
            yield replace(session, start=start)

    about: dict[str, object] = {
        "arrival": "trace",
        "trace": path.name,
        "schema": schema,
        "speed": speed,
        "requests": limit,
        "duration_seconds": duration,
    }
    return Workload(
        sessions, shares_prefixes=hashed, chained=False, requests=limit, duration=duration, about=about
    )


def _sessions(path: Path, schema: TraceFormat) -> Iterator[Session]:
    when, prompt, answer = COLUMNS[schema]
    read = TIMES[schema]
    ids, chain = count(), _Chain()
    start = before = None
    for line in _json_lines(path) if schema == "mooncake" else _csv_lines(path, schema):
        at = line.seconds(when, read)
        if before is not None and at < before:
            raise line.error(when, "is earlier than the line before", "sort the trace by time")
        start, before = at if start is None else start, at
        segments = chain.segments(line, line.tokens(prompt), ids)
        yield Session(at - start, (Turn(segments, line.tokens(answer), next(ids)),))
    if start is None:
        raise UserError(f"--trace {path}: it has no requests", "trace")


def _milliseconds(text: str) -> float:
    return float(text) / 1e3


def _date(text: str) -> float:
    """Seconds since 1970 of a date and time, in UTC unless it says otherwise."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


TIMES: dict[str, Callable[[str], float]] = {"mooncake": _milliseconds, "azure": _date, "burstgpt": float}
"""Seconds, of a time as a schema writes it."""


class _Chain:
    """Gives each chain of hash ids a segment id of its own, so that equal ids mean equal prefixes."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def segments(self, line: _Line, tokens: int, ids: Iterator[int]) -> tuple[Segment, ...]:
        hashes = line.fields.get("hash_ids")
        if hashes is None:
            return (Segment(next(ids), tokens),)
        blocks = -(-tokens // MOONCAKE_BLOCK)
        if (
            not isinstance(hashes, list)
            or len(hashes) != blocks
            or not all(isinstance(h, int) for h in hashes)
        ):
            raise line.error(
                "hash_ids",
                f"not {blocks} whole numbers",
                f"{tokens} tokens are {blocks} blocks of {MOONCAKE_BLOCK}; leave hash_ids out if not known",
            )
        parent, segments = -1, []
        for block, name in enumerate(hashes):
            parent = self._known.setdefault((parent, name), -2 - len(self._known))
            segments.append(Segment(parent, min(MOONCAKE_BLOCK, tokens - block * MOONCAKE_BLOCK)))
        return tuple(segments)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file as text.  Raises UserError for one that cannot be read, also while it is read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise UserError(f"--trace {path}: {error.strerror}", "trace") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--trace {path}: is not text in UTF-8 ({error.reason})", "trace") from error
    except csv.Error as error:
        raise UserError(f"--trace {path}: is not CSV ({error})", "trace") from error


def _json_lines(path: Path) -> Iterator[_Line]:
    with _opened(path) as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            line = _Line(path, number, {}, "mooncake")
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise line.error("text", f"not JSON ({error})", "give one object a line") from error
            if not isinstance(fields, dict):
                raise line.error("text", "not an object", "give one object a line")
            yield replace(line, fields=fields)


def _csv_lines(path: Path, schema: TraceFormat) -> Iterator[_Line]:
    with _opened(path) as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS[schema] if name not in (rows.fieldnames or [])]
        if missing:
            raise UserError(
                f"{path}, line 1: no column {missing[0]!r}; the {schema} schema has "
                f"{', '.join(COLUMNS[schema])}",
                "trace",
            )
        for fields in rows:
            yield _Line(path, rows.line_num, dict(fields), schema)


def write_trace(path: Path, workload: Workload, schema: TraceFormat) -> int:
    """Writes an open-loop workload of single requests; how many.

    Times are rounded to what the schema has.  Raises UserError for a workload whose times depend on
    answers, and for a file that cannot be written.
    """
    if workload.chained:
        raise UserError("a trace has given times: no --users and no --turns", "trace")
    sessions = [(session.start or 0.0, session.turns[0]) for session in workload.sessions()]
    lines = {"mooncake": _mooncake, "azure": _azure, "burstgpt": _burstgpt}[schema](sessions)
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--write-trace {path}: {error.strerror}", "write_trace") from error
    return len(sessions)


Timed = Iterable[tuple[float, Turn]]


def _mooncake(requests: Timed) -> Iterator[str]:
    known: dict[int, int] = {}
    for at, turn in requests:
        blocks = range(-(-turn.prompt_tokens // MOONCAKE_BLOCK))
        hashes = [known.setdefault(_block_name(turn, block), len(known)) for block in blocks]
        line = {
            "timestamp": round(at * 1e3),
            "input_length": turn.prompt_tokens,
            "output_length": turn.output_tokens,
            "hash_ids": hashes,
        }
        yield json.dumps(line)


def _block_name(turn: Turn, block: int) -> int:
    """The segment in which a block of a prompt ends, and where: it stands for all that precedes it."""
    end = min((block + 1) * MOONCAKE_BLOCK, turn.prompt_tokens)
    for segment in turn.prompt:
        if end <= segment.tokens:
            break
        end -= segment.tokens
    return segment.id << 32 | end


def _azure(requests: Timed) -> Iterator[str]:
    yield ",".join(COLUMNS["azure"])
    for at, turn in requests:
        when = EPOCH + timedelta(microseconds=round(at * 1e6))
        yield f"{when:%Y-%m-%d %H:%M:%S.%f}0,{turn.prompt_tokens},{turn.output_tokens}"


def _burstgpt(requests: Timed) -> Iterator[str]:
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    for at, turn in requests:
        total = turn.prompt_tokens + turn.output_tokens
        yield f"{at:.3f},Synthetic,{turn.prompt_tokens},{turn.output_tokens},{total},Conversation log"
