"""What `--speculative-config` may say, in vLLM's names: strictly read."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

METHODS = ("ngram",)
UNKNOWN_LENGTH = 5
"""Of what is looked up, where nothing is said of it: vLLM's (config/speculative.py of 0.33)."""


class SpeculativeConfig(BaseModel):
    """How answers are guessed ahead.

    method: ngram, what followed the last tokens where they stood before in prompt and answer.
    num_speculative_tokens: the most that are guessed of a request in a batch.  prompt_lookup_min, _max: the
    fewest and the most of the last tokens that must have stood there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: Literal["ngram"]
    num_speculative_tokens: int = Field(ge=1, le=64)
    prompt_lookup_min: int = Field(default=0, ge=1, le=64)
    prompt_lookup_max: int = Field(default=0, ge=1, le=64)

    @model_validator(mode="before")
    @classmethod
    def _one_length_is_both(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """As vLLM has it: who gives one of the two lengths means both."""
        lengths = [fields.get(name) for name in ("prompt_lookup_min", "prompt_lookup_max")]
        given = [length for length in lengths if length is not None] or [UNKNOWN_LENGTH]
        return {**fields, "prompt_lookup_min": given[0], "prompt_lookup_max": given[-1]}

    @model_validator(mode="after")
    def _lengths_are_in_order(self) -> SpeculativeConfig:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min is more than prompt_lookup_max")
        return self


def read_speculation(given: str | dict[str, Any]) -> SpeculativeConfig:
    """From JSON, or what it stands for.  Raises ValueError, with one line that names what is wrong."""
    try:
        fields = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError('is not an object, such as {"method": "ngram", "num_speculative_tokens": 4}')
    method = fields.get("method")
    if method not in METHODS:
        raise ValueError(f"method must be {' or '.join(METHODS)}, not {json.dumps(method)}")
    try:
        return SpeculativeConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{name}: " for name in first["loc"])
        raise ValueError(where + first["msg"].removeprefix("Value error, ")) from error
