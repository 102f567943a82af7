"""Types of the answers that several routes share: the OpenAPI document and the tests are made from them."""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from corepipe.answers.parts import PromptTokens
from corepipe.engine.messages import TokenLogprobs

ApiFinishReason = Literal["stop", "length"]
ErrorType = Literal[
    "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"
]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A struct that refuses unknown fields: an answer has these fields and no others."""


class Error(Strict):
    """The reason why a request failed: `param` names the field at fault, `code` is for programs."""

    message: str
    type: ErrorType
    param: str | None
    code: str | None


class Failure(Strict):
    """The answer to every request that failed."""

    error: Error


class PromptTokensDetails(Strict):
    cached_tokens: int


class CompletionTokensDetails(Strict):
    """Counts of predicted tokens, for a request with a `prediction`: those that were computed and are in the
    answer, and those that were computed and are not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class SpeculativeDecoding(Strict):
    """Results of speculative decoding for an answer: mean tokens of a step that had draft tokens, the share
    of draft tokens that were accepted, steps by how many were accepted (from none on), and steps.  Null where
    there were no draft tokens.  `assumed`: the acceptance rate was given to the server, not measured."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    assumed: bool


class DeviceTimes(Strict):
    """Times that the emulated device would have taken; requested with `device_metrics`.

    Where the host cannot keep the device's pace, `valid` is false and `time_scale_needed` is set.
    """

    device: str
    emulated: Literal[True]
    valid: bool
    time_scale_needed: float | None
    arrived_at_s: float | None
    time_to_first_token_ms: float | None
    time_per_output_token_ms: float | None
    speculative_decoding: SpeculativeDecoding | UnsetType = UNSET


class PooledUsage(Strict):
    """The token usage of a request that generates nothing, such as an embedding."""

    prompt_tokens: int
    total_tokens: int


T = TypeVar("T")


class Listing(Strict, Generic[T], kw_only=True):
    """An answer with an entry for each prompt."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[T]
    usage: PooledUsage
    corepipe: DeviceTimes | UnsetType = UNSET


class TokenTexts(Protocol):
    """The methods of a tokenizer that answers use."""

    def decode_token(self, token: int, /) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class NamedById:
    """Names tokens `token_id:N`, since several may have the same text."""

    def __init__(self, vocabulary: TokenTexts) -> None:
        self._vocabulary = vocabulary

    def decode_token(self, token: int, /) -> str:
        return f"token_id:{token}"

    def token_bytes(self, token: int, /) -> bytes:
        return self._vocabulary.token_bytes(token)


class PromptLogprob(Strict):
    """The logprob of a token at a position of the prompt; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


class PromptDetails(Strict):
    """Details of a prompt; `prompt_logprobs` are by token id, the prompt's own token first."""

    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


def prompt_fields(prompt: PromptTokens, vocabulary: TokenTexts) -> dict[str, Any]:
    """Returns the fields of `PromptDetails` that were requested."""
    fields: dict[str, Any] = {}
    if prompt.tokens is not None:
        fields["prompt_token_ids"] = prompt.tokens
    if prompt.logprobs is not None:
        fields["prompt_logprobs"] = [entry and _by_id(entry, vocabulary) for entry in prompt.logprobs]
    return fields


def _by_id(entry: TokenLogprobs, vocabulary: TokenTexts) -> dict[str, dict[str, Any]]:
    ranked = {entry.token: (entry.logprob, entry.rank)}
    ranked |= {token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)}
    return {
        str(token): {
            "logprob": logprob,
            "rank": rank,
            "decoded_token": vocabulary.token_bytes(token).decode(errors="replace"),
        }
        for token, (logprob, rank) in ranked.items()
    }
