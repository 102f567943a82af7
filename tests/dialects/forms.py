"""The dialects: how each asks for a case, and how its answers are read, by the types of its SDK."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from anthropic.types import Message, RawMessageStreamEvent
from jiter import from_json
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.dialects.cases import TOOLS, Case, Turn

Json = dict[str, Any]


@dataclass
class Told:
    """An answer in no dialect: calls are (name, arguments as a package reads them), `stop` the string that
    ended it."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    cut: bool = False
    stop: str | None = None
    prompt: int = 0
    tokens: int = 0


def arguments(text: str) -> Any:
    """Returns the arguments of a call, those that are complete of one that was cut."""
    try:
        return from_json(text.encode() or b"{}", partial_mode=True)
    except ValueError:
        return {"arguments": text}


class Dialect(ABC):
    """A dialect of chat.  names_stop: its answers say which string ended them."""

    path: str
    names_stop = True

    @abstractmethod
    def body(self, case: Case) -> Json:
        """Returns the body of a request."""

    @abstractmethod
    def whole(self, answer: Json) -> Told:
        """Reads an answer that is not streamed."""

    @abstractmethod
    def joined(self, events: Sequence[Json]) -> Told:
        """Joins the events of a stream."""

    def ask(self, http: httpx.Client, case: Case) -> tuple[Told, Told]:
        """Returns the answer whole and streamed."""
        body = {"model": "made-up", "temperature": case.temperature, "seed": case.seed, **self.body(case)}
        whole = http.post(self.path, json=body)
        assert whole.status_code == 200, (body, whole.text)
        stream = http.post(self.path, json=body | self.streaming())
        assert stream.status_code == 200, (body, stream.text)
        return self.whole(whole.json()), self.joined(list(events_of(stream.text)))

    def streaming(self) -> Json:
        return {"stream": True}


def events_of(text: str) -> Iterator[Json]:
    """Yields the events of a stream; the name of one is its type."""
    for block in text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        if lines["data"] != "[DONE]":
            event = json.loads(lines["data"])
            assert lines.get("event", event.get("type")) == event.get("type")
            yield event


class Chat(Dialect):
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"

    def body(self, case: Case) -> Json:
        body: Json = {"messages": [_message(turn) for turn in case.turns], "max_tokens": case.max_tokens}
        if case.tools:
            body["tools"] = [{"type": "function", "function": one} for one in _functions(case)]
            body |= {"tool_choice": _choice(case, nested=True), "parallel_tool_calls": case.parallel}
        if case.stops:
            body["stop"] = list(case.stops)
        if case.schema:
            schema = {"name": "x", "schema": case.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def streaming(self) -> Json:
        return {"stream": True, "stream_options": {"include_usage": True}}

    def whole(self, answer: Json) -> Told:
        ChatCompletion.model_validate(answer)
        (choice,) = answer["choices"]
        return _of_chat(choice["message"], choice, answer["usage"])

    def joined(self, events: Sequence[Json]) -> Told:
        message: Json = {"content": "", "reasoning": "", "tool_calls": []}
        last: Json = {}
        for event in events:
            ChatCompletionChunk.model_validate(event)
            for choice in event["choices"]:
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                message["reasoning"] += delta.get("reasoning") or ""
                for one in delta.get("tool_calls", ()):
                    if one["index"] == len(message["tool_calls"]):
                        message["tool_calls"].append(one)
                    else:
                        known = message["tool_calls"][one["index"]]["function"]
                        known["arguments"] += one["function"]["arguments"]
                last = choice if choice["finish_reason"] else last
        return _of_chat(message, last, events[-1]["usage"])


class Text(Chat):
    """OpenAI's completions of the prompt of the same chat."""

    path = "/v1/completions"

    def ask(self, http: httpx.Client, case: Case) -> tuple[Told, Told]:
        self._prompt = http.post(f"{Chat.path}/render", json=Chat().body(case)).json()["token_ids"]
        return super().ask(http, case)

    def body(self, case: Case) -> Json:
        asked = {name: value for name, value in super().body(case).items() if name != "messages"}
        return asked | {"prompt": self._prompt}

    def whole(self, answer: Json) -> Told:
        Completion.model_validate(answer)
        (choice,) = answer["choices"]
        return _of_chat({"content": choice["text"]}, choice, answer["usage"])

    def joined(self, events: Sequence[Json]) -> Told:
        for event in events:  # the package's type has no null for a text that goes on, which OpenAI sends
            going = [{**one, "finish_reason": one["finish_reason"] or "stop"} for one in event["choices"]]
            Completion.model_validate(event | {"choices": going})
        chosen = [event["choices"][0] for event in events if event["choices"]]
        text = "".join(one["text"] for one in chosen)
        return _of_chat({"content": text}, chosen[-1], events[-1]["usage"])


class Messages(Dialect):
    """Anthropic's messages."""

    path = "/v1/messages"
    _events = TypeAdapter[Any](RawMessageStreamEvent)

    def ask(self, http: httpx.Client, case: Case) -> tuple[Told, Told]:
        whole, streamed = super().ask(http, case)
        of_answers = ("max_tokens", "stop_sequences")
        prompt = {name: value for name, value in self.body(case).items() if name not in of_answers}
        counted = http.post(f"{self.path}/count_tokens", json={"model": "made-up", **prompt})
        assert counted.json() == {"input_tokens": whole.prompt}
        return whole, streamed

    def body(self, case: Case) -> Json:
        turns: list[Json] = []
        for turn in case.turns:
            role, content = _blocks(turn)
            if role == "user" and turns and turns[-1]["role"] == "user":
                turns[-1]["content"] += content
            elif role != "system":
                turns.append({"role": role, "content": content})
        body: Json = {"messages": turns, "max_tokens": case.max_tokens, "stop_sequences": list(case.stops)}
        body["system"] = [block for turn in case.turns if turn.role == "system" for block in _blocks(turn)[1]]
        if case.tools:
            body["tools"] = [_renamed(one) for one in _functions(case)]
            kinds = {"auto": "auto", "required": "any", "none": "none"}
            choice: Json = {"type": kinds.get(case.choice, "tool")}
            if case.choice != "none":
                choice["disable_parallel_tool_use"] = not case.parallel
            body["tool_choice"] = choice | ({"name": case.choice} if choice["type"] == "tool" else {})
        if case.schema:
            body["output_config"] = {"format": {"type": "json_schema", "schema": case.schema}}
        return body

    def whole(self, answer: Json) -> Told:
        Message.model_validate(answer)
        return _of_blocks(answer["content"], answer, answer["usage"])

    def joined(self, events: Sequence[Json]) -> Told:
        blocks: list[Json] = []
        for event in events:
            if event["type"] != "ping":
                self._events.validate_python(event)
            if event["type"] == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"input": ""})
            elif event["type"] == "content_block_delta":
                (_, kind), (name, text) = event["delta"].items()
                field_of = {"input_json_delta": "input"}.get(kind, name)
                blocks[event["index"]][field_of] += text
        for block in blocks:
            block["input"] = arguments(block["input"])
        return _of_blocks(blocks, events[-2]["delta"], events[-2]["usage"])


class Responses(Dialect):
    """OpenAI's responses."""

    path = "/v1/responses"
    names_stop = False
    _events = TypeAdapter[Any](ResponseStreamEvent)

    def body(self, case: Case) -> Json:
        body: Json = {"input": [item for turn in case.turns for item in _items(turn)], "store": False}
        body |= {"max_output_tokens": case.max_tokens, "stop": list(case.stops)}
        if case.tools:
            body["tools"] = [{"type": "function", **one} for one in _functions(case)]
            body |= {"tool_choice": _choice(case, nested=False), "parallel_tool_calls": case.parallel}
        if case.schema:
            body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": case.schema}}
        return body

    def whole(self, answer: Json) -> Told:
        Response.model_validate(answer)
        return _of_items(answer["output"], answer)

    def joined(self, events: Sequence[Json]) -> Told:
        items: dict[int, Json] = {}
        for number, event in enumerate(events):
            self._events.validate_python(event)
            assert event["sequence_number"] == number
            kind, at = event["type"], event.get("output_index", 0)
            if kind == "response.output_item.added":
                items[at] = event["item"] | {"content": [{"text": "", "type": "joined"}]}
            elif kind == "response.function_call_arguments.delta":
                items[at]["arguments"] += event["delta"]
            elif kind.endswith("_text.delta"):
                items[at]["content"][0]["text"] += event["delta"]
        last = events[-1]["response"]
        made = _of_items([items[at] for at in sorted(items)], last)
        assert made == self.whole(last), "the last event has what the others have sent"
        return made


DIALECTS: tuple[Dialect, ...] = (Chat(), Messages(), Responses())
"""The dialects in which each case can be asked for."""


def _functions(case: Case) -> list[Json]:
    return [
        {"name": name, "description": "d", "parameters": TOOLS[name], "strict": case.strict}
        for name in case.tools
    ]


def _renamed(function: Json) -> Json:
    return {{"parameters": "input_schema"}.get(name, name): value for name, value in function.items()}


def _choice(case: Case, *, nested: bool) -> Any:
    if case.choice in ("auto", "required", "none"):
        return case.choice
    named = {"name": case.choice}
    return {"type": "function", **({"function": named} if nested else named)}


def _message(turn: Turn) -> Json:
    message: Json = {"role": turn.role, "content": turn.text}
    if turn.reasoning:
        message["reasoning"] = turn.reasoning
    if turn.id:
        message["tool_call_id"] = turn.id
    if turn.calls:
        message["tool_calls"] = [
            {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for number, name, given in turn.calls
        ]
    return message


def _blocks(turn: Turn) -> tuple[str, list[Json]]:
    """Returns a turn's role and its blocks."""
    if turn.role == "tool":
        return "user", [{"type": "tool_result", "tool_use_id": turn.id, "content": turn.text}]
    thoughts = [{"type": "thinking", "thinking": turn.reasoning, "signature": "x"}] if turn.reasoning else []
    calls = [
        {"type": "tool_use", "id": number, "name": name, "input": given} for number, name, given in turn.calls
    ]
    return turn.role, [*thoughts, {"type": "text", "text": turn.text}, *calls]


def _items(turn: Turn) -> Iterator[Json]:
    """Yields the items of a turn."""
    if turn.role == "tool":
        yield {"type": "function_call_output", "call_id": turn.id, "output": turn.text}
        return
    if turn.reasoning:
        yield {
            "type": "reasoning",
            "content": [{"type": "reasoning_text", "text": turn.reasoning}],
            "summary": [],
        }
    yield {"type": "message", "role": turn.role, "content": turn.text}
    for number, name, given in turn.calls:
        yield {"type": "function_call", "call_id": number, "name": name, "arguments": json.dumps(given)}


def _of_items(items: Sequence[Json], answer: Json) -> Told:
    def text(kind: str) -> str:
        return "".join(part["text"] for one in items if one["type"] == kind for part in one["content"])

    calls = [one for one in items if one["type"] == "function_call"]
    usage = answer["usage"]
    return Told(
        text("message"),
        text("reasoning"),
        [(one["name"], arguments(one["arguments"])) for one in calls],
        answer["status"] == "incomplete",
        None,
        usage["input_tokens"],
        usage["output_tokens"],
    )


def _of_chat(message: Json, choice: Json, usage: Json) -> Told:
    reason = choice["stop_reason"]
    return Told(
        message["content"] or "",
        message.get("reasoning") or "",
        [
            (one["function"]["name"], arguments(one["function"]["arguments"]))
            for one in message.get("tool_calls") or ()
        ],
        choice["finish_reason"] == "length",
        reason if isinstance(reason, str) else None,
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def _of_blocks(blocks: Sequence[Json], end: Json, usage: Json) -> Told:
    counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return Told(
        "".join(one["text"] for one in blocks if one["type"] == "text"),
        "".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        [(one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"],
        end["stop_reason"] == "max_tokens",
        end["stop_sequence"],
        sum(usage[name] for name in counts),
        usage["output_tokens"],
    )
