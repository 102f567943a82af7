"""Settings of other servers that clients send and cannot leave out: a table of how each is handled here.

A setting that changes no answer is accepted without effect, and named in the answer's header `IGNORED`; one
that has another name here is read under that.  Any other value stays in the body, and `reading` refuses it
by name.  A strict server refuses them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from corepipe.serving.api.bodies.values import Neutral, ShortText

IGNORED = "x-corepipe-ignored"
"""The header of an answer that lists the paths of fields accepted without effect, separated by commas."""


class SettingPlace(Enum):
    """An object that may contain a setting: in words, for docs/api.md, and the names of its types."""

    CHAT = ("chats", "ChatRequest")
    COMPLETION = ("completions", "CompletionRequest")
    RESPONSES = ("responses", "ResponsesRequest")
    TEXTS = (
        "vectors, ranks, classes",
        *("EmbeddingRequest", "PoolingRequest", "ClassifyRequest", "ScoreRequest", "RerankRequest"),
    )
    ANTHROPIC = ("Anthropic's messages", "MessagesRequest", "CountTokensRequest")
    STREAM_OPTIONS = ("`stream_options`", "StreamOptions")
    MESSAGE = ("`messages[]`", "Message", "AssistantMessage", "ToolMessage")
    PART = ("`messages[].content[]`", "TextPart")
    CALL = ("`messages[].tool_calls[]`", "MessageCall")
    TOOL = ("`tools[]`", "Tool")
    FUNCTION = ("`tools[].function`", "FunctionDefinition")

    def __init__(self, in_words: str, *types: str) -> None:
        self.in_words = in_words
        self.types = types


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
_ANSWERS = (*_GENERATION, SettingPlace.RESPONSES)
_EVERYWHERE = (*_ANSWERS, SettingPlace.TEXTS)
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
_Texts = Annotated[dict[_Name, Annotated[str, Meta(max_length=16384)]], Meta(max_length=32)]
_Scalar = ShortText | float | bool
_Extras = Annotated[
    dict[_Name, _Scalar | Annotated[list[_Scalar], Meta(max_length=1024)]], Meta(max_length=64)
]

SETTINGS: Sequence[ClientSetting] = (
    ClientSetting(
        ("store",),
        Neutral((True,)),
        (SettingPlace.COMPLETION,),
        "only chats and responses are stored",
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
        _ANSWERS,
        "the prefix cache changes no answer, and keeps what fits",
        "openai and its Agents SDK, ai (npm), LiveKit, Unsloth Studio",
    ),
    ClientSetting(("prompt_cache_options",), Neutral(type=_Options), _ANSWERS, "the same", "openai"),
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
        ("cache_prompt",), Neutral(type=_Flag), _ANSWERS, "the same", "clients of llama.cpp: SillyTavern"
    ),
    ClientSetting(
        ("id_slot",),
        Neutral(type=Annotated[int, Meta(ge=-1)]),
        _ANSWERS,
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
        ("ttl",), Neutral(type=_Number), _EVERYWHERE, "the model stays loaded", "clients of LM Studio"
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
        _ANSWERS,
        "they are for extensions of vLLM, which this server does not have",
        "clients of vLLM",
    ),
    ClientSetting(
        ("client_metadata",),
        Neutral(type=_Texts),
        (SettingPlace.RESPONSES,),
        "ids of the client's own, for its logs",
        "Codex",
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
            *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold"),
            *("dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        ),
        Neutral(type=_Number),
        _GENERATION,
        "they belong to samplers that are off here",
        "the same",
    ),
    ClientSetting(
        ("context_management",),
        Neutral(type=Annotated[dict[_Name, list[dict[_Name, Any]]], Meta(max_length=8)]),
        (SettingPlace.ANTHROPIC,),
        "the whole conversation is read; its client may send less of it",
        "Claude Code",
    ),
    ClientSetting(
        ("speed",), Neutral(("fast",)), (SettingPlace.ANTHROPIC,), "there is one speed", "Claude Code"
    ),
    ClientSetting(
        ("inference_geo", "user_profile_id", "workspace_id"),
        Neutral(type=ShortText),
        (SettingPlace.ANTHROPIC,),
        "they name places and accounts of Anthropic",
        "anthropic",
    ),
    ClientSetting(
        ("diagnostics", "billing_policy"),
        Neutral(type=_Options),
        (SettingPlace.ANTHROPIC,),
        "they are for Anthropic's servers",
        "anthropic",
    ),
    ClientSetting(
        ("fallbacks",),
        Neutral(type=Annotated[list[dict[_Name, Any]], Meta(max_length=8)]),
        (SettingPlace.ANTHROPIC,),
        "other models are not tried",
        "anthropic",
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

SETTINGS_OF: Mapping[str, Mapping[str, ClientSetting]] = {
    kind: {
        name: one for one in SETTINGS if place in one.places and not one.by_template for name in one.fields
    }
    for place in SettingPlace
    for kind in place.types
}
"""The settings of each type of object, by the type's name and the field's."""
