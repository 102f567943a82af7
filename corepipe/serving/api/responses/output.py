"""The items of an answer while they grow: what each says of itself in events, and what it is at its end."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from corepipe.serving.api.responses.items import sealed
from corepipe.serving.api.responses.tools import INPUT, CalledTool

RESPONSE = "resp_"
"""The beginning of the ids of responses."""

Json = dict[str, Any]
Event = tuple[str, Json]
"""The kind of an event, and its fields."""


class GrowingItem(ABC):
    """An item of a response's output; `index`: its place there.

    Its id begins with `prefix`, and says which response it belongs to.
    """

    kind: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, response: str, index: int) -> None:
        self.id = f"{self.prefix}_{response.removeprefix(RESPONSE)}_{index}"
        self.index = index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def fields(self, status: str) -> Json:
        """Returns the item as it is now."""
        return {"id": self.id, "type": self.kind, **self._own(), "status": status}

    def opened(self) -> Iterator[Event]:
        item = {"id": self.id, "type": self.kind, **self._empty(), "status": "in_progress"}
        yield "response.output_item.added", {"output_index": self.index, "item": item}

    def closed(self, status: str) -> Iterator[Event]:
        yield from self._last()
        yield "response.output_item.done", {"output_index": self.index, "item": self.fields(status)}

    def _delta(self, kind: str, text: str, **others: object) -> Event:
        self._pieces.append(text)
        return f"response.{kind}.delta", self._here(**others, delta=text)

    def _here(self, **fields: object) -> Json:
        return {"item_id": self.id, "output_index": self.index, **fields}

    @abstractmethod
    def _own(self) -> Json:
        """Returns the fields of this kind of item."""

    @abstractmethod
    def _empty(self) -> Json:
        """Returns the same fields before there is any text."""

    @abstractmethod
    def _last(self) -> Iterator[Event]:
        """Yields the events before the item's end."""


class GrowingMessage(GrowingItem):
    """A message of the assistant, with one text."""

    kind = "message"
    prefix = "msg"

    def __init__(self, response: str, index: int) -> None:
        super().__init__(response, index)
        self._logprobs: list[Json] = []

    def opened(self) -> Iterator[Event]:
        yield from super().opened()
        yield "response.content_part.added", self._here(content_index=0, part=_output_text("", []))

    def add(self, text: str, logprobs: list[Json]) -> Event:
        self._logprobs += logprobs
        return self._delta("output_text", text, content_index=0, logprobs=logprobs)

    def _own(self) -> Json:
        return {"role": "assistant", "content": [_output_text(self.text, self._logprobs)]}

    def _empty(self) -> Json:
        return {"role": "assistant", "content": []}

    def _last(self) -> Iterator[Event]:
        done = self._here(content_index=0, text=self.text, logprobs=self._logprobs)
        yield "response.output_text.done", done
        part = _output_text(self.text, self._logprobs)
        yield "response.content_part.done", self._here(content_index=0, part=part)


class GrowingReasoning(GrowingItem):
    """The reasoning before an answer; `encrypted`: it is sealed, too, for clients that keep nothing else."""

    kind = "reasoning"
    prefix = "rs"

    def __init__(self, response: str, index: int, *, encrypted: bool) -> None:
        super().__init__(response, index)
        self._encrypted = encrypted

    def opened(self) -> Iterator[Event]:
        yield from super().opened()
        part = {"type": "reasoning_text", "text": ""}
        yield "response.content_part.added", self._here(content_index=0, part=part)

    def add(self, text: str) -> Event:
        return self._delta("reasoning_text", text, content_index=0)

    def _own(self) -> Json:
        content = [{"type": "reasoning_text", "text": self.text}]
        return {
            "summary": [],
            "content": content,
            "encrypted_content": sealed(self.text) if self._encrypted else None,
        }

    def _empty(self) -> Json:
        return {"summary": [], "content": [], "encrypted_content": None}

    def _last(self) -> Iterator[Event]:
        yield "response.reasoning_text.done", self._here(content_index=0, text=self.text)
        part = {"type": "reasoning_text", "text": self.text}
        yield "response.content_part.done", self._here(content_index=0, part=part)


class GrowingCall(GrowingItem):
    """A call of a function."""

    kind = "function_call"
    prefix = "fc"

    def __init__(self, response: str, index: int, call_id: str, tool: CalledTool) -> None:
        super().__init__(response, index)
        named = {"name": tool.name} | ({"namespace": tool.namespace} if tool.namespace else {})
        self._named = {"call_id": call_id, **named}

    def add(self, text: str) -> Iterator[Event]:
        yield self._delta("function_call_arguments", text)

    def _own(self) -> Json:
        return {**self._named, "arguments": self.text}

    def _empty(self) -> Json:
        return {**self._named, "arguments": ""}

    def _last(self) -> Iterator[Event]:
        done = self._here(arguments=self.text, name=self._named["name"])
        yield "response.function_call_arguments.done", done


class GrowingCustomCall(GrowingCall):
    """A call of a custom tool: its input is a string in the arguments of the function that stands for it."""

    kind = "custom_tool_call"
    prefix = "ctc"

    def __init__(self, response: str, index: int, call_id: str, tool: CalledTool) -> None:
        super().__init__(response, index, call_id, tool)
        self._string = StringArgument(INPUT)

    def add(self, text: str) -> Iterator[Event]:
        if said := self._string.feed(text):
            yield self._delta("custom_tool_call_input", said)

    def _own(self) -> Json:
        return {**self._named, INPUT: self.text}

    def _empty(self) -> Json:
        return {**self._named, INPUT: ""}

    def _last(self) -> Iterator[Event]:
        if rest := self._string.rest():
            yield self._delta("custom_tool_call_input", rest)
        yield "response.custom_tool_call_input.done", self._here(input=self.text)


class StringArgument:
    """Reads the string of the one argument `name` while its JSON is being written.

    What is no such object is the argument itself: models sometimes forget the object.
    """

    _CHARACTERS = re.compile(
        r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
        r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*"
    )
    """Whole characters of a JSON string; one may be a pair of escapes."""

    def __init__(self, name: str) -> None:
        self._start = re.compile(r'\s*\{\s*"' + name + r'"\s*:\s*"')
        self._held = ""
        self._begun = self._ended = False

    def feed(self, text: str) -> str:
        """Returns the next characters of the string."""
        self._held += "" if self._ended else text
        if not self._begun and (start := self._start.match(self._held)):
            self._begun, self._held = True, self._held[start.end() :]
        if not self._begun or self._ended:
            return ""
        found = self._CHARACTERS.match(self._held)
        assert found is not None
        self._held = self._held[found.end() :]
        self._ended = self._held.startswith('"')
        return _unescaped(found.group())

    def rest(self) -> str:
        """Returns what is left at the end of the arguments."""
        return "" if self._ended else self._held


def _unescaped(text: str) -> str:
    """Returns the characters of a part of a JSON string; as it stands, if it is no such part."""
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


def call_id_of(response: str, number: int, given: str) -> str:
    """Returns the id of call `number` of a response, of the same form as the one `given` by chance.

    A response that is computed again has the same ids.
    """
    head = "call_" if given.startswith("call_") else ""
    return head + hashlib.sha256(f"{response}.{number}".encode()).hexdigest()[: len(given) - len(head)]


def _output_text(text: str, logprobs: Sequence[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
