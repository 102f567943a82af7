"""The fields that bodies of the OpenAI API share, those without effect, and those that constrain answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from corepipe.engine.sampling_parameters import MAX_SEED, MAX_TOKENS, TokenSampling, fields_over_http
from corepipe.serving.api.bodies.reading import Body, Chosen, Nested
from corepipe.serving.api.bodies.values import Neutral, ShortText
from corepipe.serving.api.http.errors import echo, invalid
from corepipe.structured.constraints import (
    MAX_NAME,
    SCHEMA_OR_TEXT,
    Constraint,
    ConstraintError,
    StructuredOutputsParams,
    check_size,
    constraint_of,
    json_text,
    schema_text,
)

TAG = ("format", "structures", "triggers")
"""The fields of `ResponseFormat` that belong to a structural tag."""


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """OpenAI's `json_schema`; the schema is enforced whatever `strict` says."""

    schema: Annotated[dict[str, Any], Meta(description="a JSON schema")]
    name: Annotated[str, Meta(max_length=MAX_NAME, description="named in errors")] = ""


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's `response_format`, llama.cpp's `schema` beside `type`, and vLLM's `structural_tag`."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"], Meta(description="the answer's form")
    ]
    json_schema: Annotated[JsonSchemaFormat | None, Meta(description="with type `json_schema`")] = None
    schema: Annotated[
        dict[str, Any] | None, Meta(description="llama.cpp's form: in place of `json_schema`")
    ] = None
    format: Annotated[dict[str, Any] | None, Meta(description="with type `structural_tag`")] = None
    structures: Annotated[
        list[dict[str, Any]] | None, Meta(description="with type `structural_tag`, in its older form")
    ] = None
    triggers: Annotated[list[str] | None, Meta(description="with `structures`")] = None


def requested(
    response_format: ResponseFormat | None,
    structured_outputs: StructuredOutputsParams | None,
    guided: Mapping[str, Any],
) -> Constraint | None:
    """Returns the constraint of the answer.  Raises ConstraintError if it is wrong, or if there are two.

    guided: the fields `guided_...`, under their names without that prefix.
    """
    found = (
        ("response_format", None if response_format is None else _formatted(response_format)),
        ("structured_outputs", None if structured_outputs is None else constraint_of(structured_outputs)),
        ("guided_", _guided(guided)),
    )
    constraints = [(name, one) for name, one in found if one is not None]
    if len(constraints) > 1:
        (first, _), (second, other), *_ = constraints
        param = other.field if second == "guided_" else second
        raise ConstraintError(f"Send one constraint: the body has both {first} and {param}.", param)
    return constraints[0][1] if constraints else None


def _guided(given: Mapping[str, Any]) -> Constraint | None:
    if all(value is None or value is False for value in given.values()):
        return None
    return constraint_of(StructuredOutputsParams(**given), "guided_{}")


def _formatted(wanted: ResponseFormat) -> Constraint | None:
    field = "response_format"
    if wanted.type != "json_schema" and wanted.json_schema is not None:
        where = f"{field}.json_schema"
        raise ConstraintError(f"{where} is for type json_schema, not for {wanted.type}.", where)
    tag = {name: value for name in TAG if (value := getattr(wanted, name)) is not None}
    if wanted.type == "structural_tag":
        return _tag(wanted, tag)
    if tag:
        where = f"{field}.{next(iter(tag))}"
        raise ConstraintError(f"{where} is for type structural_tag, not for {wanted.type}.", where)
    if wanted.type == "text":
        if wanted.schema is not None:
            raise ConstraintError(f"{field}.schema is for JSON, not for type text.", f"{field}.schema")
        return None
    if wanted.json_schema is not None and wanted.schema is not None:
        raise ConstraintError(f"Send one schema: {field} has two.", f"{field}.schema")
    if wanted.json_schema is not None:
        text, name = schema_text(wanted.json_schema.schema, field), wanted.json_schema.name
        constraint = Constraint("json_schema", text, field, name)
    elif wanted.schema is not None:
        constraint = Constraint("json_schema", schema_text(wanted.schema, field), field)
    elif wanted.type == "json_schema":
        where = f"{field}.json_schema"
        raise ConstraintError(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")
    else:
        constraint = Constraint("json_object", '{"type":"object"}', field)
    check_size(constraint)
    return constraint


def _tag(wanted: ResponseFormat, tag: Mapping[str, Any]) -> Constraint:
    field = "response_format"
    if wanted.schema is not None:
        where = f"{field}.schema"
        raise ConstraintError(f"{where} is for JSON, not for type structural_tag.", where)
    constraint = Constraint("structural_tag", json_text(tag, field, "a structural tag"), field)
    check_size(constraint)
    return constraint


MAX_CHOICES = 128
MAX_STOPS = 4
MAX_STOP_LENGTH = 256
MAX_BAD_WORDS = 128
MAX_ALLOWED = 2**18
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_MESSAGES = 2048
REQUEST_ID = r"^[A-Za-z0-9._:\-]{1,128}$"

GUIDED = ("json", "json_object", "regex", "choice", "grammar", "whitespace_pattern")
"""The names, after `guided_`, of fields that older versions of vLLM have."""
CONSTRAINING = ("response_format", "structured_outputs", *(f"guided_{name}" for name in GUIDED))

Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
NaturalNumber = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
NO_LIMIT = -1
"""The value of `max_tokens` for as many as the context has room for."""
Limit = Annotated[int, Meta(ge=NO_LIMIT, le=MAX_TOKENS)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: Annotated[bool, Meta(description="the last chunk has the usage")] = False
    continuous_usage_stats: Annotated[
        bool, Meta(description="each chunk has the usage of its choice so far; needs `include_usage`")
    ] = False


class ModelRequest(Body, frozen=True, kw_only=True):
    """The fields that all requests to a model share."""

    model: Annotated[str | None, Meta(description="a name listed by `/v1/models`")] = None


class PredictedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a prediction's text."""

    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text that the client expects in the answer; it makes the answer faster, and changes none of it."""

    type: Literal["content"]
    content: str | Annotated[list[PredictedPart], Meta(max_length=MAX_MESSAGES)]

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


_Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], ShortText], Meta(max_length=16)]

NEUTRAL_EVERYWHERE: Mapping[str, Neutral] = {
    "user": Neutral(type=ShortText),
    "metadata": Neutral(type=_Metadata),
    "safety_identifier": Neutral(type=ShortText),
    "prompt_cache_key": Neutral(type=ShortText),
    "service_tier": Neutral(("auto", "default")),
    "store": Neutral((False,)),
    "prompt_cache_retention": Neutral(("in_memory",)),
    "prompt_cache_options": Neutral(),
    "use_beam_search": Neutral((False,)),
    "length_penalty": Neutral((1.0,)),
    "spaces_between_special_tokens": Neutral((True,)),
    "guided_decoding_backend": Neutral(
        ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer", "llguidance")
    ),
}

NESTED: Mapping[str, Nested | Chosen] = {
    "stream_options": Nested(StreamOptions, {"include_obfuscation": Neutral((False,))}),
    "response_format": Nested(
        ResponseFormat,
        nested={
            "json_schema": Nested(
                JsonSchemaFormat, {"strict": Neutral((True, False)), "description": Neutral(type=str)}
            )
        },
    ),
    "structured_outputs": Nested(
        StructuredOutputsParams,
        dict.fromkeys(("disable_fallback", "disable_additional_properties"), Neutral((True, False))),
    ),
}


class StreamedRequest(ModelRequest, frozen=True, kw_only=True):
    """The first fields of bodies for tokens."""

    model: Annotated[str, Meta(description="a name listed by `/v1/models`")]
    stream: Annotated[
        bool, Meta(description="answer as server-sent events, with a chunk for the tokens that are available")
    ] = False
    stream_options: Annotated[
        StreamOptions | None,
        Meta(description="`include_usage`, `continuous_usage_stats`; only with `stream`"),
    ] = None
    n: Annotated[
        int, Meta(ge=1, le=MAX_CHOICES, description="number of choices for each prompt, at most max_num_seqs")
    ] = 1


if TYPE_CHECKING:

    class SampledRequest(StreamedRequest, TokenSampling, frozen=True, kw_only=True):
        """The fields of TokenSampling, for checkers of types; bodies have other types of these."""

        logit_bias: Any
        logprobs: Any

else:
    SampledRequest = msgspec.defstruct(
        "SampledRequest", fields_over_http(), bases=(StreamedRequest,), frozen=True, kw_only=True
    )
    """The fields of bodies up to the sampling parameters."""


class GenerationRequest(SampledRequest, frozen=True, kw_only=True):
    """The fields that completions and chat completions share.  Null stands for the default everywhere."""

    neutral: ClassVar[Mapping[str, Neutral]] = NEUTRAL_EVERYWHERE
    nested: ClassVar[Mapping[str, Nested | Chosen]] = NESTED

    logit_bias: Annotated[
        dict[str, Bias], Meta(max_length=MAX_LOGIT_BIAS, description="token id to a bias of -100 to 100")
    ] = msgspec.field(default_factory=dict)
    stop: Annotated[
        Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)],
        Meta(description=f"up to {MAX_STOPS} strings of up to {MAX_STOP_LENGTH} characters"),
    ] = msgspec.field(default_factory=list)
    stop_token_ids: Annotated[
        list[NaturalNumber], Meta(max_length=64, description="tokens that end the answer")
    ] = msgspec.field(default_factory=list)
    bad_words: Annotated[
        list[BadWord], Meta(max_length=MAX_BAD_WORDS, description="words that the answer must not contain")
    ] = msgspec.field(default_factory=list)
    allowed_token_ids: Annotated[
        Annotated[list[NaturalNumber], Meta(min_length=1, max_length=MAX_ALLOWED)] | None,
        Meta(description="the answer may contain only these tokens"),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, Meta(description="add the stop string or token that ended the answer to its text")
    ] = False
    ignore_eos: Annotated[bool, Meta(description="continue after the model's end token")] = False
    prediction: Annotated[
        Prediction | None,
        Meta(description="text that the answer may contain: makes the answer faster, and changes none of it"),
    ] = None
    speculation: Annotated[
        bool, Meta(description="false: no draft tokens for this answer, which stays the same")
    ] = True
    min_tokens: Annotated[NaturalNumber, Meta(description="no stop before this many tokens")] = 0
    skip_special_tokens: Annotated[bool, Meta(description="leave special tokens out of the text")] = True
    priority: Annotated[
        int, Meta(ge=-(2**31), le=MAX_TOKENS, description="requests with a lower number run earlier")
    ] = 0
    cache_salt: Annotated[
        str, Meta(max_length=128, description="separates prefix-cache entries: other salts do not find them")
    ] = ""
    device_metrics: Annotated[
        bool, Meta(description="add the times of the emulated device, as `corepipe`")
    ] = False
    prompt_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description="alternatives for each token of the prompt, returned as `prompt_logprobs`"),
    ] = None
    return_token_ids: Annotated[bool, Meta(description="add `prompt_token_ids` and `token_ids`")] = False
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="name the tokens of `logprobs` by id: `token_id:N`")
    ] = False
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None,
        Meta(description="keep that many tokens of the prompt; -1 = as many as leave room for the answer"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"], Meta(description="the side that is cut off: `left` keeps the end")
    ] = "left"
    request_id: Annotated[
        Annotated[str, Meta(pattern=REQUEST_ID)] | None,
        Meta(description="the answer's `id` ends with it; 1 to 128 letters, digits and `._:-`"),
    ] = None

    response_format: Annotated[
        ResponseFormat | None, Meta(description="`text`, `json_object` or `json_schema`")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputsParams | None, Meta(description="vLLM's: one of `json`, `regex`, `choice`, ...")
    ] = None
    guided_json: Annotated[
        Any, Meta(description="as `structured_outputs.json`", extra_json_schema=SCHEMA_OR_TEXT)
    ] = None
    guided_json_object: Annotated[bool | None, Meta(description="as `structured_outputs.json_object`")] = None
    guided_regex: Annotated[str | None, Meta(description="as `structured_outputs.regex`")] = None
    guided_choice: Annotated[list[str] | None, Meta(description="as `structured_outputs.choice`")] = None
    guided_grammar: Annotated[str | None, Meta(description="as `structured_outputs.grammar`")] = None
    guided_whitespace_pattern: Annotated[
        str | None, Meta(description="as `structured_outputs.whitespace_pattern`")
    ] = None

    def constraint(self) -> Constraint | None:
        """Returns the constraint of the answer, or None.  Raises ConstraintError."""
        if all(getattr(self, name) is None for name in CONSTRAINING):
            return None
        guided = {name: getattr(self, f"guided_{name}") for name in GUIDED}
        return requested(self.response_format, self.structured_outputs, guided)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_everywhere(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        """Checks the rules between fields and those that depend on the deployment.  Raises ApiError."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed with stream: true.", "stream_options")
        if self.usage_everywhere and not self.usage_chunk:
            name = "stream_options.continuous_usage_stats"
            raise invalid(f"{name} needs include_usage: true.", name)
        if self.request_id is not None and self.request_id.endswith("\n"):  # `$` of a pattern allows it
            raise invalid("request_id must not end with a line break.", "request_id")
        if self.n > max_num_seqs:
            raise invalid(f"n is at most {max_num_seqs} here (max_num_seqs).", "n")
        if any(token >= vocab_size for token in self.stop_token_ids):
            raise invalid(
                f"stop_token_ids must be below the vocabulary's size, {vocab_size}.", "stop_token_ids"
            )
        if max(self.allowed_token_ids or (0,)) >= vocab_size:
            raise invalid(
                f"allowed_token_ids must be below the vocabulary's size, {vocab_size}.", "allowed_token_ids"
            )
        for token in self.logit_bias:
            if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocab_size):
                raise invalid(f"logit_bias: {echo(token)} is no token id below {vocab_size}.", "logit_bias")

    def sampling(
        self, choice: int, logprobs: int | None, prompt_logprobs: int | None, otherwise: int | None = None
    ) -> TokenSampling:
        """Returns the sampling parameters of choice number `choice`.  otherwise: the seed if the body has
        none."""
        seed = otherwise if self.seed is None else self.seed
        return TokenSampling.of(
            self,
            top_k=max(self.top_k, 0),
            seed=None if seed is None else _later_seed(seed, choice),
            logit_bias={int(token): bias for token, bias in self.logit_bias.items()},
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


def _later_seed(seed: int, choice: int) -> int:
    """Returns the seed of a choice; 0 follows the largest seed."""
    return (seed + choice) & MAX_SEED if seed >= 0 else seed + choice
