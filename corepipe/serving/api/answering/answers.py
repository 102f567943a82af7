"""Types of the answers that several routes share: the OpenAPI document and the tests are made from them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

ApiFinishReason = Literal["stop", "length"]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "server_error",
]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A struct that refuses unknown fields: an answer has these fields and no others."""


class Error(Strict):
    """The reason why a request failed: `param` names the field at fault, `code` is for programs."""

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
