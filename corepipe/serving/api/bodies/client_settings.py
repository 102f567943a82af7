"""Settings of other servers that clients send and cannot leave out: a table of how each is handled here.

A setting that changes no answer is accepted without effect, and named in the answer's header `IGNORED`; one
that has another name here is read under that.  Any other value stays in the body, and `protocol` refuses it
by name.  A strict server refuses them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from corepipe.serving.api.bodies.protocol import Neutral, ShortText
from corepipe.serving.api.http.errors import ApiError, echo, invalid

IGNORED = "x-corepipe-ignored"
"""The header of an answer that lists the paths of fields accepted without effect, separated by commas."""


class SettingPlace(Enum):
    """An object that may contain a setting: its path in a body, and the schemas of the API document that
    describe it.  The body itself has an empty path."""

    CHAT = ("", "ChatRequest")
    COMPLETION = ("", "CompletionRequest")
    TEXTS = ("", "EmbeddingRequest", "PoolingRequest", "ClassifyRequest", "ScoreRequest", "RerankRequest")
    STREAM_OPTIONS = ("stream_options.", "StreamOptions")
    MESSAGE = ("messages[].", "Message", "AssistantMessage", "ToolMessage")
    PART = ("messages[].content[].", "TextPart")
    CALL = ("messages[].tool_calls[].", "MessageCall")
    TOOL = ("tools[].", "Tool")
    FUNCTION = ("tools[].function.", "FunctionDefinition")

    def __init__(self, path: str, *schemas: str) -> None:
        self.path = path
        self.schemas = schemas
        self.steps = tuple(path.replace("[]", ".[]").rstrip(".").split(".")) if path else ()

    @property
    def in_words(self) -> str:
        """The place in words, for docs/api.md."""
        words = {
            SettingPlace.CHAT: "chats",
            SettingPlace.COMPLETION: "completions",
            SettingPlace.TEXTS: "vectors, ranks, classes",
        }
        return words.get(self, f"`{self.path.rstrip('.')}`")


class ClientSetting(NamedTuple):
    """Fields that clients send; null stands for the default in each.

    takes: the values that are accepted.  why: why they change no answer, or what they mean.  clients: which
    clients send them.  read_as: the name here of a setting that is honoured; its own name if it is a
    parameter here.  by_template: honoured if the chat template has a variable of that name, else without
    effect.
    """

    fields: tuple[str, ...]
    takes: Neutral
    places: tuple[SettingPlace, ...]
    why: str
    clients: str
    read_as: str = ""
    by_template: bool = False


_GENERATION = (SettingPlace.CHAT, SettingPlace.COMPLETION)
_EVERYWHERE = (*_GENERATION, SettingPlace.TEXTS)
_MARKED = (
    SettingPlace.MESSAGE,
    SettingPlace.PART,
    SettingPlace.CALL,
    SettingPlace.TOOL,
    SettingPlace.FUNCTION,
)

_Flag = bool
_Number = int | float
_Name = Annotated[str, Meta(max_length=64)]
_Options = Annotated[dict[_Name, _Name | int | None], Meta(max_length=8)]
_Scalar = ShortText | float | bool
_Extras = Annotated[
    dict[_Name, _Scalar | Annotated[list[_Scalar], Meta(max_length=1024)]], Meta(max_length=64)
]

SETTINGS: Sequence[ClientSetting] = (
    ClientSetting(
        ("store",),
        Neutral((True,)),
        _GENERATION,
        "answers are never stored",
        "openai and its Agents SDK, ai (npm)",
    ),
    ClientSetting(
        ("service_tier",),
        Neutral(("flex", "scale", "priority", "fast")),
        _GENERATION,
        "there is one tier; `priority` orders requests",
        "openai, pydantic-ai, ai (npm), Codex",
    ),
    ClientSetting(
        ("prompt_cache_retention",),
        Neutral(("24h", "in-memory")),
        _GENERATION,
        "the prefix cache changes no answer, and keeps what fits",
        "openai and its Agents SDK, ai (npm), LiveKit, Unsloth Studio",
    ),
    ClientSetting(
        ("prompt_cache_options",),
        Neutral(type=_Options),
        _GENERATION,
        "the same",
        "openai",
    ),
    ClientSetting(
        ("prompt_cache_breakpoint",),
        Neutral(type=_Options),
        (SettingPlace.PART,),
        "as above: the cache finds a prefix wherever it ends",
        "openai",
    ),
    ClientSetting(
        ("cache_control",),
        Neutral(type=_Options),
        (*_GENERATION, *_MARKED),
        "as above: Anthropic's marks",
        "litellm, langchain, LibreChat, pi",
    ),
    ClientSetting(
        ("cache_prompt",),
        Neutral(type=_Flag),
        _GENERATION,
        "the same",
        "clients of llama.cpp: SillyTavern",
    ),
    ClientSetting(
        ("id_slot",),
        Neutral(type=Annotated[int, Meta(ge=-1)]),
        _GENERATION,
        "the scheduler chooses; no answer depends on it",
        "clients of llama.cpp",
    ),
    ClientSetting(
        ("session_id",),
        Neutral(type=ShortText),
        _EVERYWHERE,
        "a name for routers and logs",
        "clients of vLLM and OpenRouter",
    ),
    ClientSetting(
        ("keep_alive",),
        Neutral(type=ShortText | _Number),
        _EVERYWHERE,
        "the model stays loaded",
        "clients of Ollama: opencode, Open WebUI",
    ),
    ClientSetting(
        ("ttl",),
        Neutral(type=_Number),
        _EVERYWHERE,
        "the model stays loaded",
        "clients of LM Studio",
    ),
    ClientSetting(
        ("stream_interval",),
        Neutral(type=Annotated[int, Meta(ge=1)]),
        _GENERATION,
        "how a stream is cut into chunks changes no answer",
        "clients of vLLM",
    ),
    ClientSetting(
        ("vllm_xargs",),
        Neutral(type=_Extras),
        _GENERATION,
        "they are for extensions of vLLM, which this server does not have",
        "clients of vLLM",
    ),
    ClientSetting(
        ("include_obfuscation",),
        Neutral((True,)),
        (SettingPlace.STREAM_OPTIONS,),
        "chunks are not padded; their contents are the same",
        "openai",
    ),
    ClientSetting(
        ("timings_per_token", "return_progress"),
        Neutral(type=_Flag),
        _GENERATION,
        "they add figures to the answer; `device_metrics` and `usage` have the available ones",
        "clients of llama.cpp: its web page",
    ),
    ClientSetting(
        ("reasoning_format",),
        Neutral(("auto", "deepseek")),
        (SettingPlace.CHAT,),
        "reasoning is separated from the text anyway",
        "clients of llama.cpp: its web page",
    ),
    ClientSetting(
        ("typical_p", "typ_p", "tfs_z"),
        Neutral((1,)),
        _GENERATION,
        "1 is off; another value is refused",
        "clients of llama.cpp: its web page, SillyTavern",
    ),
    ClientSetting(
        ("mirostat", "dynatemp_range", "xtc_probability", "dry_multiplier", "top_a"),
        Neutral((0,)),
        _GENERATION,
        "0 is off; another value is refused",
        "clients of llama.cpp and Ollama: their web pages, SillyTavern",
    ),
    ClientSetting(
        (
            "mirostat_tau",
            "mirostat_eta",
            "dynatemp_exponent",
            "xtc_threshold",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
        ),
        Neutral(type=_Number),
        _GENERATION,
        "they belong to samplers that are off here",
        "the same",
    ),
    ClientSetting(
        ("reasoning_effort",),
        Neutral(("minimal", "low", "medium", "high", "xhigh", "max")),
        (SettingPlace.CHAT,),
        "a parameter; without effect where the chat template has no reasoning to switch",
        "openai, crewAI, cognee, marimo, VS Code",
        read_as="reasoning_effort",
        by_template=True,
    ),
    ClientSetting(
        ("verbosity",),
        Neutral(("low", "high")),
        (SettingPlace.CHAT,),
        "a parameter; without effect where the chat template has no such variable",
        "openai, langchain, ai (npm), ag2",
        read_as="verbosity",
        by_template=True,
    ),
    ClientSetting(
        ("verbosity",),
        Neutral(("low", "medium", "high")),
        (SettingPlace.COMPLETION,),
        "there is no chat template",
        "the same",
    ),
    ClientSetting(
        ("include_reasoning",),
        Neutral(type=_Flag),
        (SettingPlace.CHAT,),
        "a parameter: false leaves the reasoning out of the answer",
        "clients of vLLM and OpenRouter",
        read_as="include_reasoning",
    ),
    ClientSetting(
        ("repeat_penalty",),
        Neutral(type=Annotated[float, Meta(ge=0.01, le=10)]),
        _GENERATION,
        "`repetition_penalty`",
        "clients of llama.cpp, Ollama and LM Studio",
        read_as="repetition_penalty",
    ),
    ClientSetting(
        ("n_predict",),
        Neutral(type=Annotated[int, Meta(ge=-1, le=2**31 - 1)]),
        _GENERATION,
        "`max_tokens`",
        "clients of llama.cpp: its web page, SillyTavern",
        read_as="max_tokens",
    ),
    ClientSetting(
        ("max_tokens",),
        Neutral((-1,)),
        _GENERATION,
        "no limit except the context",
        "clients of LM Studio and llama.cpp, langchain",
        read_as="max_tokens",
    ),
    ClientSetting(
        ("max_completion_tokens",),
        Neutral((-1,)),
        (SettingPlace.CHAT,),
        "the same",
        "the same",
        read_as="max_completion_tokens",
    ),
)

SettingRows = Mapping[str, ClientSetting]

_ROWS: Mapping[SettingPlace, SettingRows] = {
    place: {
        name: one for one in SETTINGS if place in one.places and not one.by_template for name in one.fields
    }
    for place in SettingPlace
}
_OF_BODIES: Mapping[str, SettingPlace] = {
    schema: place for place in SettingPlace if not place.steps for schema in place.schemas
}
_MARKS = tuple(f'"{name}"'.encode() for name in {name for place in _MARKED for name in _ROWS[place]})
"""Bytes of which a body has at least one if its messages or tools contain a setting."""


def taken_by_schema() -> Mapping[str, Mapping[str, Neutral]]:
    """Returns the accepted settings that are no parameters, by schema of the API document and field name."""
    return {
        schema: {name: row.takes for name, row in _ROWS[place].items() if row.read_as != name}
        for place in SettingPlace
        for schema in place.schemas
    }


def settle(
    fields: dict[str, Any], body: bytes, request: type[msgspec.Struct], *, strict: bool = False
) -> list[str]:
    """Removes the settings of the table from the fields of a body, or puts them under their names here.

    fields: the decoded `body`; changed in place.  Returns the names, with their paths, of settings without
    effect.  Raises ApiError for two values of one setting, and on a strict server for every setting.
    """
    ignored: dict[str, None] = {}
    own = _OF_BODIES.get(request.__name__)
    if own is not None:
        _settle(fields, own, ignored, strict)
    if isinstance(options := fields.get("stream_options"), dict):
        _settle(options, SettingPlace.STREAM_OPTIONS, ignored, strict)
    if any(mark in body for mark in _MARKS):
        for place in _MARKED:
            for one in _objects(fields, place.steps):
                _settle(one, place, ignored, strict)
    return list(ignored)


def _settle(fields: dict[str, Any], place: SettingPlace, ignored: dict[str, None], strict: bool) -> None:
    rows = _ROWS[place]
    for name in [name for name in fields if name in rows]:
        row, value = rows[name], fields[name]
        if value is not None and not row.takes.accepts(value):
            continue
        if strict:
            if value is not None:
                raise _refusal(row, name, place.path + name)
        elif row.read_as != name:
            del fields[name]
            if row.read_as:
                _rename(fields, name, row.read_as, value)
            elif value is not None:
                ignored[place.path + name] = None


def _rename(fields: dict[str, Any], name: str, here: str, value: object) -> None:
    if value is None:
        return
    if fields.get(here, value) not in (None, value):
        raise invalid(f"{name} is another name of {here}, and has another value: send one of them.", name)
    fields[here] = value


def _objects(value: object, steps: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the objects at the end of a path."""
    if not steps:
        if isinstance(value, dict):
            yield value
    elif steps[0] == "[]":
        for one in value if isinstance(value, list) else ():
            yield from _objects(one, steps[1:])
    elif isinstance(value, dict):
        yield from _objects(value.get(steps[0]), steps[1:])


def _refusal(row: ClientSetting, name: str, where: str) -> ApiError:
    """Returns the error of a strict server."""
    hint = f"Use {row.read_as}" if row.read_as not in ("", name) else "Leave it out"
    message = f"Unsupported value for parameter {echo(where)}. {hint}: this server is strict (--strict)."
    return invalid(message, where, "unsupported_parameter")
