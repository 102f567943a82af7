"""What several routes answer, as types: for the OpenAPI document, and for tests to hold the answers to."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

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


class CompletionTokensDetails(Strict):
    """Of a request with a `prediction`: tokens of it that were computed and are in the answer, and that are
    not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class SpeculativeDecoding(Strict):
    """What came of guesses about an answer: tokens of a step that had some, the share that was right, steps
    by how many were right, from none on, and steps.  Null where there were none.  `assumed`: the server was
    told how many are."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    assumed: bool


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
    speculative_decoding: SpeculativeDecoding | UnsetType = UNSET


class PooledUsage(Strict):
    """Of what generates nothing."""

    prompt_tokens: int
    total_tokens: int
