"""The items of a request: those that clients send, as messages of a chat."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corepipe.serving.api.bodies.reading import Chosen, Nested, explained
from corepipe.serving.api.bodies.values import Neutral, convert
from corepipe.serving.api.http.errors import ApiError, echo, invalid

MAX_ITEMS = 2048
SEALED = "corepipe1."
"""The beginning of the `encrypted_content` of reasoning: it is compressed, and no secret."""
MAX_SEALED = 4 * 2**20
"""The most characters of reasoning that `encrypted_content` may hold."""

Json = dict[str, Any]


class TextContent(msgspec.Struct, frozen=True):
    """A text in a message, in the output of a call or in reasoning."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalContent(msgspec.Struct, frozen=True):
    """A refusal in an answer that was given before."""

    type: Literal["refusal"]
    refusal: str


class MessageItem(msgspec.Struct, frozen=True):
    """A message; `type` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Json]
    type: Literal["message"] = "message"


class CallItem(msgspec.Struct, frozen=True):
    """A call of a function by the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(msgspec.Struct, frozen=True):
    """A call of a custom tool by the model."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CallOutputItem(msgspec.Struct, frozen=True):
    """The output of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | list[Json]


class ReasoningItem(msgspec.Struct, frozen=True):
    """Reasoning before an answer: as `content`, or sealed in `encrypted_content`."""

    type: Literal["reasoning"]
    summary: list[Json] = []
    content: list[Json] | None = None
    encrypted_content: Annotated[str, Meta(max_length=2 * MAX_SEALED)] | None = None


class ReferenceItem(msgspec.Struct, frozen=True):
    """A reference to an item of a stored response."""

    id: Annotated[str, Meta(max_length=128)]
    type: Literal["item_reference"] = "item_reference"


AnyItem = MessageItem | CallItem | CustomCallItem | CallOutputItem | ReasoningItem | ReferenceItem


class Items(Chosen):
    """The kinds of items; one without a type is a message."""

    def of(self, fields: Mapping[str, Any], path: str) -> Nested:
        return super().of({"type": fields.get("type") or "message"}, path)


def _no_item(path: str, value: object) -> ApiError:
    message = f"{path}.type: {echo(value)} is none of {', '.join(ITEMS.kinds)}."
    return invalid(message, f"{path}.type", "unsupported_value")


def _no_text(path: str, value: object) -> ApiError:
    message = f"{path}: unsupported content of type {echo(value)}; this server reads text only."
    return invalid(message, path, "unsupported_value")


_ECHOED: Mapping[str, Neutral] = {"id": Neutral(type=Any), "status": Neutral(type=Any)}
"""Fields of items that servers make and clients send back."""
_TEXT = Nested(TextContent, {"annotations": Neutral(type=Any), "logprobs": Neutral(type=Any)}, lenient=True)
_KINDS: Mapping[str, Nested] = {
    **dict.fromkeys(("input_text", "output_text", "text", "summary_text", "reasoning_text"), _TEXT),
    "refusal": Nested(RefusalContent, lenient=True),
}
_PARTS = Chosen("type", _KINDS, _no_text)
_TYPES: Mapping[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
}
ITEMS = Items(
    "type",
    {
        **{
            name: Nested(
                kind,
                {**_ECHOED, "phase": Neutral(type=Any), "parsed_arguments": Neutral(type=Any)},
                dict.fromkeys(("content", "output", "summary"), _PARTS),
                lenient=True,
            )
            for name, kind in _TYPES.items()
        },
        "item_reference": Nested(ReferenceItem, lenient=True),
    },
    _no_item,
)
"""The items of `input`."""


def typed(item: Mapping[str, Any], path: str) -> AnyItem:
    """Returns a screened item as its type.  Raises ApiError that names the field at fault."""
    made: AnyItem = _converted(item, ITEMS.of(item, path).request, path)
    return made


def _converted(value: object, kind: type[Any], path: str) -> Any:  # noqa: ANN401 -- as msgspec has it
    try:
        return convert(value, kind)
    except msgspec.ValidationError as error:
        raise explained(error, path) from None


def listed(given: str | Sequence[Json]) -> list[Json]:
    """Returns the input as items, whatever its form."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [one if one.get("type") else {"type": "message", **one} for one in given]


_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "cto",
    "reasoning": "rs",
}
"""The beginnings of the ids of items."""


def with_ids(items: Sequence[Json], response: str) -> list[Json]:
    """Returns items as they are kept with a response: those without an id get one that names it."""
    own = response.partition("_")[2]
    return [
        _complete(one if one.get("id") else {"id": f"{_PREFIXES[one['type']]}_{own}_i{at}", **one})
        for at, one in enumerate(items)
    ]


def _complete(item: Json) -> Json:
    """Returns an item as lists show it: contents as parts, and with a status."""
    done = {"status": "completed", **item}
    if item["type"] == "message" and isinstance(item["content"], str):
        text = {"type": "input_text", "text": item["content"]}
        said = {"type": "output_text", "text": item["content"], "annotations": []}
        done["content"] = [said if item["role"] == "assistant" else text]
    return done


def sealed(reasoning: str) -> str:
    """Returns reasoning in the form of `encrypted_content`."""
    return SEALED + base64.b64encode(zlib.compress(reasoning.encode("utf-8", "surrogatepass"))).decode()


def unsealed(content: str, path: str) -> str:
    """Returns the reasoning that `sealed` was given.  Raises ApiError for what another server made."""
    if content.startswith(SEALED):
        opened = zlib.decompressobj()
        try:
            text = opened.decompress(base64.b64decode(content[len(SEALED) :], validate=True), MAX_SEALED)
            if opened.eof:
                return text.decode()
        except (ValueError, zlib.error):
            pass
    raise invalid(f"{path}: this server did not make it.", path)


@dataclass(slots=True)
class Conversation:
    """Items as messages of a chat; `places`: the item that each message begins with, by path."""

    messages: list[Json] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    _open: bool = False
    """True while calls and text join the assistant's message before them."""

    def say(self, role: str, content: str | list[Json], place: str, **others: str) -> None:
        """Adds a message."""
        self.places[f"messages[{len(self.messages)}]"] = place
        self.messages.append({"role": role, "content": content, **others})
        self._open = False

    def assistant(self, place: str, *, anew: bool) -> Json:
        """Returns the assistant's message that the next item belongs to: a new one, if there must be."""
        if anew or not self._open:
            self.say("assistant", "", place)
            self._open = True
        return self.messages[-1]

    def call(self, call_id: str, name: str, arguments: str, place: str) -> None:
        calls = self.assistant(place, anew=False).setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def add(self, item: AnyItem, place: str, names: Mapping[tuple[str, str], str]) -> None:
        """Adds an item; `names`: what the model knows a tool as, by its namespace and its name."""
        if isinstance(item, MessageItem):
            self._message(item, place)
        elif isinstance(item, CallItem):
            self.call(item.call_id, _known(item, names), item.arguments, place)
        elif isinstance(item, CustomCallItem):
            arguments = msgspec.json.encode({"input": item.input}).decode()
            self.call(item.call_id, _known(item, names), arguments, place)
        elif isinstance(item, CallOutputItem):
            self.say("tool", _text(item.output, f"{place}.output"), place, tool_call_id=item.call_id)
        elif isinstance(item, ReasoningItem) and (thoughts := _thoughts(item, place)):
            message = self.assistant(place, anew=bool(self.messages and _says(self.messages[-1])))
            message["reasoning"] = message.get("reasoning", "") + thoughts

    def _message(self, item: MessageItem, place: str) -> None:
        content = _text(item.content, f"{place}.content")
        if item.role == "assistant":
            said = bool(self.messages and _says(self.messages[-1]))
            self.assistant(place, anew=said)["content"] = content
        else:
            self.say(item.role, content, place)


def _says(message: Json) -> bool:
    return bool(message["content"]) or "tool_calls" in message


def _known(item: CallItem | CustomCallItem, names: Mapping[tuple[str, str], str]) -> str:
    return names.get((item.namespace or "", item.name), item.name)


def _text(content: str | Sequence[Json], path: str) -> str | list[Json]:
    """Returns the text of a content; several texts as parts."""
    if isinstance(content, str):
        return content
    texts = _texts(content, path)
    return [{"type": "text", "text": one} for one in texts] if len(texts) > 1 else "".join(texts)


def _texts(parts: Sequence[Json], path: str) -> list[str]:
    """Returns the texts of parts.  Raises ApiError for a part without text."""
    kinds = [(_PARTS.of(one, f"{path}[{at}]").request, one) for at, one in enumerate(parts)]
    typed_parts = [_converted(one, kind, f"{path}[{at}]") for at, (kind, one) in enumerate(kinds)]
    return [one.refusal if isinstance(one, RefusalContent) else one.text for one in typed_parts]


def _thoughts(item: ReasoningItem, place: str) -> str:
    if item.content:
        return "".join(_texts(item.content, f"{place}.content"))
    if item.encrypted_content:
        return unsealed(item.encrypted_content, f"{place}.encrypted_content")
    return "\n\n".join(_texts(item.summary, f"{place}.summary"))


def conversation(
    items: Iterable[AnyItem],
    names: Mapping[tuple[str, str], str],
    instructions: str | None,
    kept: int = 0,
) -> Conversation:
    """Returns items as a conversation after `instructions`; the first `kept` were stored before."""
    made = Conversation()
    if instructions:
        made.say("system", instructions, "instructions")
    for at, item in enumerate(items):
        place = f"input[{at - kept}]" if at >= kept else "previous_response_id"
        made.add(item, place, names)
    return made
