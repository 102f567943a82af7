"""What the routes answer, as types: made into the OpenAPI document, and what tests hold the answers to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

FinishReason = Literal["stop", "length"]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "server_error",
]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing but these fields."""


class Error(Strict):
    """Why a request failed: `param` names the field at fault, `code` is for programs."""

    message: str
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "rate_limit_error",
        "server_error",
    ]
    param: str | None
    code: str | None


class Failure(Strict):
    """Every answer that is no success."""

    error: Error


class PromptTokensDetails(Strict):
    cached_tokens: int


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class DeviceTimes(Strict):
    """What the emulated device would have taken; asked for with `device_metrics`.

    Not `valid` where the host cannot keep the device's pace, but with the `time_scale_needed`.
    """

    device: str
    emulated: Literal[True]
    valid: bool
    time_scale_needed: float | None
    arrived_at_s: float | None
    time_to_first_token_ms: float | None
    time_per_output_token_ms: float | None


class CompletionLogprobs(Strict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(Strict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class Completion(Strict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class TopLogprob(Strict):
    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Strict):
    content: list[TokenLogprob]
    refusal: None


class ChatMessage(Strict):
    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[Any]


class ChatChoice(Strict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class ChatCompletion(Strict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class ModelCard(Strict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    permission: list[Any]


class ModelList(Strict):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(Strict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(Strict):
    prompt: str


class Health(Strict):
    """`what` is being loaded and how far it is `done`, 0 to 1, while `status` is loading."""

    status: str
    what: str | UnsetType = UNSET
    done: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class Version(Strict):
    version: str


class Aborted(Strict):
    aborted: Literal[True]
