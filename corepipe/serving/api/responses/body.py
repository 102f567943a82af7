"""The body of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from corepipe.answers.parsing.tools import MAX_TOOLS
from corepipe.engine.sampling_parameters import MAX_TOKENS, fields_over_http
from corepipe.serving.api.bodies.protocol import MAX_LOGPROBS, GenerationRequest, ModelRequest
from corepipe.serving.api.bodies.reading import Chosen, Nested
from corepipe.serving.api.bodies.values import Neutral, ShortText
from corepipe.serving.api.responses.items import ITEMS, MAX_ITEMS
from corepipe.serving.api.routes.chat import ChatRequest, Effort
from corepipe.structured.constraints import MAX_NAME

SAMPLING = tuple(name for name, _, _ in fields_over_http())
SHARED = (
    *("logit_bias", "stop", "stop_token_ids", "bad_words", "allowed_token_ids", "ignore_eos"),
    *("include_stop_str_in_output", "min_tokens", "skip_special_tokens", "priority", "cache_salt"),
    *("device_metrics", "speculation", "structured_outputs", "include_reasoning"),
    *("chat_template", "chat_template_kwargs"),
)
"""The fields that mean what they mean in the body of a chat."""

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], ShortText],
    Meta(max_length=16, description="kept with the response"),
]
Includable = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
"""The values of `include` that have an effect; the others belong to hosted tools and images."""


class TextFormat(msgspec.Struct, frozen=True):
    """The form of the answer's text."""

    type: Annotated[Literal["text", "json_object", "json_schema"], Meta(description="the text's form")]
    name: Annotated[str, Meta(max_length=MAX_NAME, description="with type `json_schema`")] = ""
    schema: Annotated[dict[str, Any] | None, Meta(description="with type `json_schema`")] = None
    description: str | None = None
    strict: Annotated[bool | None, Meta(description="the schema is enforced anyway")] = None


class TextConfig(msgspec.Struct, frozen=True):
    """The form and the length of the answer's text."""

    format: TextFormat | None = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="as the chat template has it")
    ] = None


class ReasoningConfig(msgspec.Struct, frozen=True):
    """Effort of the model's reasoning, and the form in which the answer shows it."""

    effort: Annotated[
        Effort | None, Meta(description="none: no reasoning; else as the chat template has it")
    ] = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        Meta(description="without effect: the whole reasoning is in the answer"),
    ] = None


class EventOptions(msgspec.Struct, frozen=True):
    """Options of a stream of events."""

    include_obfuscation: Annotated[bool, Meta(description="without effect: events are not padded")] = False


if TYPE_CHECKING:

    class SharedFields(ModelRequest, frozen=True, kw_only=True):
        """The shared fields that are read here, for checkers of types."""

        temperature: float
        top_p: float
        presence_penalty: float
        frequency_penalty: float
        include_reasoning: bool
        seed: int | None

else:
    SharedFields = msgspec.defstruct(
        "SharedFields",
        [
            (one.name, one.type, msgspec.field(default=one.default, default_factory=one.default_factory))
            for one in msgspec.structs.fields(ChatRequest)
            if one.name in (*SAMPLING, *SHARED)
        ],
        bases=(ModelRequest,),
        frozen=True,
        kw_only=True,
    )
    """The fields of bodies that are those of a chat's."""


class ResponsesRequest(SharedFields, frozen=True, kw_only=True):
    """The body of POST /v1/responses."""

    neutral: ClassVar[Mapping[str, Neutral]] = {
        "n": Neutral((1,)),
        "prompt_cache_options": Neutral(),
        "prompt_cache_retention": Neutral(("in_memory",)),
        "conversation": Neutral(),
        "moderation": Neutral(),
        "prompt": Neutral(),
    }
    nested: ClassVar[Mapping[str, Nested | Chosen]] = {
        "input": ITEMS,
        "text": Nested(TextConfig, nested={"format": Nested(TextFormat)}),
        "reasoning": Nested(
            ReasoningConfig,
            {"generate_summary": Neutral(), "context": Neutral(("auto",)), "mode": Neutral(("standard",))},
        ),
        "stream_options": Nested(EventOptions),
        "structured_outputs": GenerationRequest.nested["structured_outputs"],
    }

    model: Annotated[str, Meta(description="a name listed by `/v1/models`")]
    input: Annotated[
        str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_ITEMS)],
        Meta(
            description="text, or items: `message`, `function_call`, `function_call_output`, "
            "`custom_tool_call`, `custom_tool_call_output`, `reasoning`, `item_reference`"
        ),
    ] = msgspec.field(default_factory=list)
    instructions: Annotated[str | None, Meta(description="a system message before the input")] = None
    max_output_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None,
        Meta(description="reasoning included; default: the rest of the context"),
    ] = None
    previous_response_id: Annotated[
        Annotated[str, Meta(max_length=128)] | None,
        Meta(description="a stored response: its input and output come before the input"),
    ] = None
    background: Annotated[
        bool, Meta(description="answer at once with the status `queued`; needs `store`")
    ] = False
    store: Annotated[bool, Meta(description="keep the response, so that it can be retrieved")] = True
    stream: Annotated[bool, Meta(description="answer as server-sent events")] = False
    stream_options: EventOptions | None = None
    text: Annotated[TextConfig | None, Meta(description="`format` and `verbosity` of the text")] = None
    reasoning: Annotated[ReasoningConfig | None, Meta(description="`effort`")] = None
    include: Annotated[
        Annotated[list[Includable], Meta(max_length=16)] | None,
        Meta(description=f"`{ENCRYPTED}`, `{LOGPROBS}`; others have no effect"),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description=f"alternatives, for `{LOGPROBS}`"),
    ] = None

    tools: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="`function`, `custom`, or a `namespace` of these"),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | dict[str, Any] | None,
        Meta(description="or `{type: function}`, `{type: custom}`, `{type: allowed_tools}`"),
    ] = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: at most one call")] = True
    max_tool_calls: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None,
        Meta(description="of hosted tools, of which there are none"),
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"],
        Meta(description="`auto`: without the oldest items, if all do not fit the context"),
    ] = "disabled"

    context_management: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=16)] | None,
        Meta(description="without effect: nothing is compacted"),
    ] = None

    metadata: Metadata | None = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast"] | None,
        Meta(description="there is one tier; `priority` orders requests"),
    ] = None
    prompt_cache_key: Annotated[ShortText | None, Meta(description="returned")] = None
    safety_identifier: Annotated[ShortText | None, Meta(description="returned")] = None
    user: Annotated[ShortText | None, Meta(description="returned")] = None

    @property
    def includes(self) -> frozenset[str]:
        return frozenset(self.include or ())
