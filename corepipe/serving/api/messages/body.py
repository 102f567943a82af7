"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from corepipe.answers.parsing.tools import MAX_TOOLS
from corepipe.engine.sampling_parameters import MAX_TOKENS, TokenSampling, fields_over_http
from corepipe.serving.api.bodies.protocol import MAX_MESSAGES, MAX_STOP_LENGTH, ModelRequest
from corepipe.serving.api.bodies.values import Neutral, ShortText
from corepipe.serving.api.messages.blocks import CacheControl, Texts, Turn

MAX_STOPS = 16


class CustomTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs.  `input_schema` may be missing: then it takes no arguments."""

    name: str
    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None


class Auto(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="any"):
    """One of the tools must be called."""

    disable_parallel_tool_use: bool | None = None


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tool"):
    """This tool must be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="none"):
    """No tool may be called."""


Choice = Auto | AnyTool | NamedTool | NoTool
DISPLAYS = (None, "summarized", "omitted")
"""The values of `thinking.display` that mean something here; Claude Code sends others, too."""


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The switch of the reasoning before an answer, where the chat template has one.

    budget_tokens has no effect.  display: omitted leaves the text of the reasoning out of the answer.
    """

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    display: Annotated[str, Meta(max_length=64)] | None = None

    @property
    def on(self) -> bool:
        return self.type != "disabled"


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema that the answer fits."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer, and how much the model reasons."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: dict[str, Any] | None = None


_NEUTRAL: Mapping[str, Neutral] = {
    "metadata": Neutral(type=Annotated[dict[str, ShortText | None], Meta(max_length=16)]),
    "service_tier": Neutral(("auto", "standard_only")),
    "speed": Neutral(("standard",)),
    "container": Neutral(),
    "mcp_servers": Neutral(([],)),
}


class CountTokensRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /v1/messages/count_tokens: what determines the prompt."""

    neutral: ClassVar[Mapping[str, Neutral]] = _NEUTRAL

    model: Annotated[str, Meta(description="a name listed by `/v1/models`")]
    messages: Annotated[
        list[Turn],
        Meta(
            min_length=1,
            max_length=MAX_MESSAGES,
            description="of `user`, `assistant` and `system`; a last one of the assistant is continued",
        ),
    ]
    system: Annotated[str | Texts | None, Meta(description="instructions, as text or blocks of it")] = None
    tools: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="tools of type `custom`, which the client runs: [tools](tools.md)"),
    ] = None
    tool_choice: Annotated[
        Choice | None, Meta(description="`auto` (the default), `any`, `tool` with a `name`, or `none`")
    ] = None
    thinking: Annotated[
        Thinking | None,
        Meta(description="`enabled`, `adaptive` or `disabled`; default: the template's"),
    ] = None
    output_config: Annotated[OutputConfig | None, Meta(description="`format`, `effort`")] = None
    output_format: Annotated[
        OutputFormat | None, Meta(description="an older name of `output_config.format`")
    ] = None
    cache_control: Annotated[
        CacheControl | None, Meta(description="the prefix cache keeps prompts with and without it")
    ] = None


if TYPE_CHECKING:

    class _Sampled(CountTokensRequest, TokenSampling, frozen=True, kw_only=True):
        """The sampling parameters, for checkers of types."""

else:
    _Sampled = msgspec.defstruct(
        "_Sampled",
        [field for field in fields_over_http() if field[0] in ("temperature", "top_p", "top_k", "seed")],
        bases=(CountTokensRequest,),
        frozen=True,
        kw_only=True,
    )
    """A body with the sampling parameters of Anthropic's API, and a seed."""


class MessagesRequest(_Sampled, frozen=True, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[
        int, Meta(ge=1, le=MAX_TOKENS, description="at most; less where the context has less room")
    ]
    stream: Annotated[bool, Meta(description="answer as server-sent events")] = False
    stop_sequences: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]],
        Meta(max_length=MAX_STOPS, description=f"up to {MAX_STOPS} texts that end the answer"),
    ] = msgspec.field(default_factory=list)
