"""Traces of real services as workloads: the Mooncake, Azure and BurstGPT schemas, which can also be written,
and OpenTelemetry spans (`spans`).

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
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from math import inf
from pathlib import Path
from typing import Literal

from corepipe.errors import UserError
from corepipe.workload.spans import span_sessions
from corepipe.workload.trace_lines import Line, json_lines, opened
from corepipe.workload.workload import Segment, Session, Turn, Workload

TraceFormat = Literal["mooncake", "azure", "burstgpt", "otel"]

MOONCAKE_BLOCK = 512
"""Tokens for which a hash id stands."""

LONGEST_HEAD = 1 << 16
"""Characters of the first line that are read to find the schema."""

HEAD_OF_SPANS = 64
"""Characters at the start of a file within which an export of spans can be recognised."""

EPOCH = datetime(2023, 11, 16, tzinfo=UTC)
"""Start of the traces that are written in Azure's schema, as in Azure's first trace."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "mooncake": ("timestamp", "input_length", "output_length"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
}
"""Columns of each schema that has a request per line: time, tokens in, tokens out."""


def trace_format(path: Path, given: TraceFormat | None = None) -> TraceFormat:
    """Returns the given format, or the one that the file looks like.  Raises UserError for none."""
    if given is not None:
        return given
    with opened(path) as file:
        head = " "
        while head.isspace():
            head = file.readline(LONGEST_HEAD)
    head = head.strip().lstrip("\ufeff")
    if not head:
        raise UserError(f"--trace {path}: it is empty; a trace has a request a line", "trace")
    if head.startswith("{"):
        return "otel" if '"resourceSpans"' in head[:HEAD_OF_SPANS] else "mooncake"
    columns = next(csv.reader([head]), [])
    names: tuple[TraceFormat, ...] = ("azure", "burstgpt")
    for name in names:
        if set(COLUMNS[name][1:]) & set(columns):
            return name
    raise UserError(
        f"--trace {path}: its first line is of no known schema (mooncake, azure, burstgpt, otel); "
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
    """Returns the requests of a file at their times; no more than `limit`, and of the first `duration`
    seconds.

    speed: factor by which the trace is played faster; `duration` is then of the faster trace.  The file is
    read as the stream is. Raises UserError for a file that cannot be read or is of no known schema; reading
    the stream raises it for a line that is no request.
    """
    if not 0 < speed < inf:
        raise UserError(f"--trace-speed must be above 0, not {speed}; 2 plays twice as fast", "trace_speed")
    schema = trace_format(path, given)
    spans = schema == "otel"

    def sessions() -> Iterator[Session]:
        left = limit
        for session in span_sessions(path) if spans else _sessions(path, schema):
            start = (session.start or 0.0) / speed
            if left == 0 or (duration is not None and start > duration):
                return
            turns = tuple(
                replace(turn, think_seconds=turn.think_seconds / speed) for turn in session.turns[:left]
            )
            left = None if left is None else left - len(turns)
            yield Session(start, turns)

    about: dict[str, object] = {
        "arrival": "trace",
        "trace": path.name,
        "schema": schema,
        "speed": speed,
        "requests": limit,
        "duration_seconds": duration,
    }
    return Workload(
        sessions,
        shares_prefixes=schema in {"mooncake", "otel"},
        chained=spans,
        talks=spans,
        requests=limit,
        duration=duration,
        about=about,
    )


def _sessions(path: Path, schema: TraceFormat) -> Iterator[Session]:
    when, prompt, answer = COLUMNS[schema]
    read = TIMES[schema]
    ids, chain = count(), _Chain()
    start = before = None
    for line in json_lines(path, COLUMNS[schema]) if schema == "mooncake" else _csv_lines(path, schema):
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
    """Returns a date and time as seconds since 1970, in UTC unless it says otherwise."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


TIMES: dict[str, Callable[[str], float]] = {"mooncake": _milliseconds, "azure": _date, "burstgpt": float}
"""Functions that convert a schema's times to seconds."""


class _Chain:
    """Assigns each chain of hash ids a segment id, so that equal segment ids mean equal prefixes."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def segments(self, line: Line, tokens: int, ids: Iterator[int]) -> tuple[Segment, ...]:
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


def _csv_lines(path: Path, schema: TraceFormat) -> Iterator[Line]:
    with opened(path) as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS[schema] if name not in (rows.fieldnames or [])]
        if missing:
            raise UserError(
                f"{path}, line 1: no column {missing[0]!r}; the {schema} schema has "
                f"{', '.join(COLUMNS[schema])}",
                "trace",
            )
        for fields in rows:
            yield Line(path, rows.line_num, dict(fields), COLUMNS[schema])


def write_trace(path: Path, workload: Workload, schema: TraceFormat) -> int:
    """Writes an open-loop workload of single requests and returns their number.

    Times are rounded to what the schema has.  Raises UserError for a workload whose times depend on answers,
    and for a file that cannot be written.
    """
    if workload.chained:
        raise UserError("a trace has given times: no --users, no --turns and no spans", "trace")
    if schema == "otel":
        raise UserError("--trace-format otel is read; write mooncake, azure or burstgpt", "trace_format")
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
    """Returns a number for the segment and the position in it where a block of a prompt ends: it identifies
    the whole prefix up to there."""
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
