"""Sessions of agents, read from OpenTelemetry spans that follow its semantic conventions for generative AI.

An export is JSON as OTLP has it, one a line, as the collector's file exporter writes them. Spans whose
`gen_ai.operation.name` is a call of a model are turns; the others (agents, tools) enclose turns. Turns of one
`gen_ai.conversation.id`, or of one trace where there is none, are one session.  A turn follows the turn that
ended last before it began, and the time between is spent by a tool or a user; several turns that follow the
same one run at once.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from corepipe.errors import UserError
from corepipe.workload.trace_lines import Line, json_lines
from corepipe.workload.workload import Segment, Session, Turn

CALLS = frozenset({"chat", "text_completion", "generate_content"})
"""Operations of a model that read a prompt and generate."""

INPUT, OUTPUT, CACHED = (f"gen_ai.usage.{what}_tokens" for what in ("input", "output", "cache_read.input"))


@dataclass(frozen=True, slots=True)
class _Span:
    """A span with the line of the file that holds it and its attributes.  Times in nanoseconds."""

    line: Line
    id: tuple[str, str]
    parent: tuple[str, str] | None
    start: int
    end: int

    @property
    def session(self) -> str:
        return str(self.line.fields.get("gen_ai.conversation.id") or self.id[0])

    @property
    def calls(self) -> bool:
        return self.line.fields.get("gen_ai.operation.name") in CALLS


@dataclass(slots=True)
class _OpenSession:
    """A session that is being assembled, and the time at which its first turn began."""

    start: int
    turns: list[Turn] = field(default_factory=list)


def span_sessions(path: Path) -> Iterator[Session]:
    """Yields the sessions of a file in order of their start; the first starts at 0.

    Tokens that a session's first turn found in a cache (`gen_ai.usage.cache_read.input_tokens`) become a
    system prompt that it shares with other sessions of its agent and model. A prompt shorter than the
    conversation so far is treated as a new one.

    Raises UserError, which names file and line, for a line that is no span, for a span that ends before it
    starts or starts before its parent, for parents that are not in the file, and for spans that are their own
    ancestors.
    """
    spans = [span for line in json_lines(path) for span in _spans(line)]
    _check_parents(spans)
    calls = sorted((span for span in spans if span.calls), key=lambda span: (span.start, span.end))
    if not calls:
        raise UserError(
            f"--trace {path}: no span in it is a call of a model ({', '.join(sorted(CALLS))})", "trace"
        )
    for talk in _talks(calls):
        yield Session((talk.start - calls[0].start) / 1e9, tuple(talk.turns))


def _spans(line: Line) -> Iterator[_Span]:
    """Yields the spans of an export."""
    for resource in _list(line, line.fields, "resourceSpans"):
        for scope in _list(line, resource, "scopeSpans"):
            for span in _list(line, scope, "spans"):
                yield _span(line, span)


def _list(line: Line, of: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = of.get(name, [] if name == "scopeSpans" else None)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise line.error(
            name, "is no list of objects", "give exports of spans as OTLP has them in JSON, one a line"
        )
    return found


def _span(line: Line, fields: dict[str, Any]) -> _Span:
    trace, own, parent = (str(fields.get(name) or "") for name in ("traceId", "spanId", "parentSpanId"))
    attributes = {
        str(each.get("key")): _value(each.get("value"))
        for each in _list(line, {"attributes": [], **fields}, "attributes")
    }
    of_span = Line(line.path, line.number, attributes, ("gen_ai.operation.name", INPUT, OUTPUT))
    if not trace or not own:
        raise line.error("spanId", "a span without its ids", "give traceId and spanId")
    start, end = (_nanoseconds(line, fields, name) for name in ("startTimeUnixNano", "endTimeUnixNano"))
    if end < start:
        raise line.error("endTimeUnixNano", f"span {own} ends before it starts", "fix it or drop the span")
    return _Span(of_span, (trace, own), (trace, parent) if parent else None, start, end)


def _value(value: object) -> object:
    """Returns the value of an attribute: of {"stringValue": ...}, {"intValue": ...} and the like."""
    return next(iter(value.values()), None) if isinstance(value, dict) else None


def _nanoseconds(line: Line, fields: dict[str, Any], name: str) -> int:
    text = str(fields.get(name))
    if not (text.isascii() and text.isdigit()):
        raise line.error(name, f"{text:.40} is no time", "give nanoseconds since 1970")
    return int(text)


def _check_parents(spans: Iterable[_Span]) -> None:
    known: dict[tuple[str, str], _Span] = {}
    for span in spans:
        if span.id in known:
            raise span.line.error("spanId", f"span {span.id[1]} is there twice", "give each span once")
        known[span.id] = span
    rooted: set[tuple[str, str]] = set()
    for span in known.values():
        way: dict[tuple[str, str], None] = {}
        at = span
        while at.parent is not None and at.id not in rooted:
            way[at.id] = None
            at = _parent(at, known)
            if at.id in way:
                raise at.line.error("parentSpanId", f"span {at.id[1]} is its own ancestor", "fix its parent")
        rooted.update(way)


def _parent(span: _Span, known: dict[tuple[str, str], _Span]) -> _Span:
    assert span.parent is not None
    found = known.get(span.parent)
    if found is None:
        remedy = "give whole traces, or leave the parent out"
        raise span.line.error(
            "parentSpanId", f"span {span.id[1]}: {span.parent[1]} is not in the file", remedy
        )
    if span.start < found.start:
        remedy = "fix their times"
        raise span.line.error("startTimeUnixNano", f"span {span.id[1]} starts before its parent", remedy)
    return found


def _talks(calls: Iterable[_Span]) -> list[_OpenSession]:
    """Groups calls, given in order of their start, into sessions in that order."""
    ids, prefixes = count(), dict[object, int]()
    talks: list[_OpenSession] = []
    ended: dict[str, list[tuple[int, int, _OpenSession, int]]] = {}  # the calls of each session, by their end
    for number, call in enumerate(calls):
        before = ended.setdefault(call.session, [])
        at = bisect_right(before, call.start, key=lambda each: each[0])
        if at:
            end, _, talk, after = before[at - 1]
            prompt = _prompt(call, talk.turns[0].prompt[:-1], talk.turns[after], ids)
            pause = (call.start - end) / 1e9
        else:
            talk, after, pause = _OpenSession(call.start), None, 0.0
            talks.append(talk)
            prompt = _first_prompt(call, prefixes, ids)
        talk.turns.append(Turn(prompt, call.line.tokens(OUTPUT), next(ids), pause, after))
        insort(before, (call.end, number, talk, len(talk.turns) - 1), key=lambda each: each[:2])
    return talks


def _first_prompt(call: _Span, prefixes: dict[object, int], ids: Iterator[int]) -> tuple[Segment, ...]:
    """Returns the shared segment, if there is one, and the rest, which has at least one token."""
    tokens, fields = call.line.tokens(INPUT), call.line.fields
    shared = call.line.tokens(CACHED) if fields.get(CACHED) not in (None, "0", 0) else 0
    if not 0 < shared < tokens:
        return (Segment(next(ids), tokens),)
    whose = (fields.get("gen_ai.agent.name"), fields.get("gen_ai.request.model"), shared)
    prefix = Segment(prefixes.setdefault(whose, -1 - len(prefixes)), shared)
    return (prefix, Segment(next(ids), tokens - shared))


def _prompt(
    call: _Span, shared: tuple[Segment, ...], before: Turn, ids: Iterator[int]
) -> tuple[Segment, ...]:
    """Returns the conversation so far and the new message, or a new prompt after the shared segment."""
    tokens = call.line.tokens(INPUT)
    so_far = (*before.prompt, Segment(before.answer, before.output_tokens))
    for known in (so_far, shared):
        new = tokens - sum(segment.tokens for segment in known)
        if new > 0:
            return (*known, Segment(next(ids), new))
    return (Segment(next(ids), tokens),)
