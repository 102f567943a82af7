"""The fields of `--speculative-config`, in vLLM's names: strictly read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

METHODS = ("ngram", "draft_model")
UNKNOWN_LENGTH = 5
"""Tokens that are looked up, where no length is given: vLLM's (config/speculative.py of 0.33)."""


class SpeculativeConfig(BaseModel):
    """The settings of speculative decoding.

    method: ngram, the tokens that followed the last tokens at an earlier place in prompt and answer;
    draft_model, the tokens that the smaller `model` would generate, given by a directory's path or a name.
    num_speculative_tokens: the most draft tokens of a request in a batch. prompt_lookup_min, _max: the fewest
    and the most of the last tokens that must match the earlier place. rejection_sample_method: standard;
    synthetic: no drafts are made, and the number of accepted tokens is drawn by the rates or the length
    below. synthetic_acceptance_rates: for each position in a draft, how often it and all before it are
    accepted; synthetic_acceptance_length: instead of the rates, the mean number of tokens of a step, the
    step's own token included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: Literal["ngram", "draft_model"]
    model: str | None = Field(default=None, min_length=1)
    num_speculative_tokens: int = Field(ge=1, le=64)
    prompt_lookup_min: int | None = Field(default=None, ge=1, le=64)
    prompt_lookup_max: int | None = Field(default=None, ge=1, le=64)
    rejection_sample_method: Literal["standard", "synthetic"] = "standard"
    synthetic_acceptance_rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None
    synthetic_acceptance_length: float | None = Field(default=None, ge=1)

    @property
    def synthetic_rates(self) -> tuple[float, ...] | None:
        """For each position, how often drafts are assumed to be accepted up to there; None: it is found out
        by drafting."""
        if self.rejection_sample_method == "standard" or self.synthetic_acceptance_length is None:
            return self.synthetic_acceptance_rates
        right = self.synthetic_acceptance_length - 1
        return tuple(min(1.0, max(0.0, right - place)) for place in range(self.num_speculative_tokens))

    @property
    def draft_path(self) -> Path | None:
        """Path of the draft model, after `with_draft_here`; None where there is no draft model to compute."""
        return None if self.model is None or self.synthetic_rates is not None else Path(self.model)

    def as_given(self) -> dict[str, object]:
        """Returns the fields that describe the settings completely, for JSON."""
        unused = set() if self.synthetic_rates is None else {"prompt_lookup_min", "prompt_lookup_max"}
        return self.model_dump(mode="json", exclude_defaults=True, exclude=unused)

    @model_validator(mode="before")
    @classmethod
    def _lists_are_fixed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _one_length_is_both(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Sets both lengths where only one is given, as vLLM does."""
        if fields.get("method") != "ngram":
            return fields
        lengths = [fields.get(name) for name in ("prompt_lookup_min", "prompt_lookup_max")]
        given = [length for length in lengths if length is not None] or [UNKNOWN_LENGTH]
        return {**fields, "prompt_lookup_min": given[0], "prompt_lookup_max": given[-1]}

    @property
    def lookups(self) -> tuple[int, int]:
        """The fewest and the most of the last tokens that must match an earlier place."""
        return self.prompt_lookup_min or UNKNOWN_LENGTH, self.prompt_lookup_max or UNKNOWN_LENGTH

    @model_validator(mode="after")
    def _lengths_are_in_order(self) -> SpeculativeConfig:
        fewest, most = self.lookups
        if self.method == "ngram" and fewest > most:
            raise ValueError("prompt_lookup_min is more than prompt_lookup_max")
        return self

    @model_validator(mode="after")
    def _fields_are_the_methods(self) -> SpeculativeConfig:
        if self.method == "draft_model":
            if self.model is None:
                raise ValueError("draft_model needs model: the path or the name of the draft model")
            if self.prompt_lookup_min or self.prompt_lookup_max:
                raise ValueError(
                    "prompt_lookup_min and prompt_lookup_max belong to ngram, not to draft_model"
                )
        elif self.model is not None:
            raise ValueError(f"model belongs to draft_model, not to {self.method}")
        return self

    @model_validator(mode="after")
    def _what_is_assumed_is_whole(self) -> SpeculativeConfig:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        most = self.num_speculative_tokens
        if (self.rejection_sample_method == "synthetic") != ((rates is None) != (length is None)):
            raise ValueError(
                'rejection_sample_method "synthetic" needs one of synthetic_acceptance_rates and '
                "synthetic_acceptance_length, and no other method may have them"
            )
        if length is not None and length > most + 1:
            raise ValueError(
                f"synthetic_acceptance_length {length:g} is more than {most} draft tokens and one"
            )
        if rates is not None and len(rates) != most:
            raise ValueError(
                f"synthetic_acceptance_rates has {len(rates)} rates for {most} num_speculative_tokens"
            )
        if rates is not None and any(before < rate for before, rate in pairwise(rates)):
            raise ValueError(
                "synthetic_acceptance_rates rises: a draft token is accepted only after all those before it"
            )
        return self


def read_speculation(given: str | dict[str, Any]) -> SpeculativeConfig:
    """Reads the settings from JSON or from its object. Raises ValueError, with one line that names what is
    wrong."""
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
