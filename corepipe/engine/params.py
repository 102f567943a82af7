"""Sampling parameters as the library takes them, and the bounds of each number that a sampler can follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from numbers import Integral, Real
from typing import Annotated, Any

import msgspec

from corepipe.engine.sampling_parameters import (
    COUNT,
    FLOAT32_MAX,
    MAX_TOKENS,
    NumberBounds,
    TokenSampling,
    bounds_of,
)
from corepipe.errors import UserError, shown
from corepipe.structured.constraints import Constraint, StructuredOutputsParams, constraint_of


class SamplingParams(TokenSampling, frozen=True, kw_only=True):
    """The parameters of an answer to a prompt; names and defaults as in vLLM. Those that concern the draw of
    a token are in `TokenSampling`.

    max_tokens None: as many as fit. stop: strings that end the text, which are not part of it unless
    `include_stop_str_in_output`. bad_words: words that the text must not contain. allowed_token_ids: the only
    tokens that it may contain. logprobs, prompt_logprobs: alternatives to report for each token (0: the token
    alone). logit_bias: added to the logits of these tokens; -inf bans a token. structured_outputs: the format
    of the answer. speculation: whether drafts of the answer may be computed, where there is a
    speculative_config; the answer is the same.

    Raises UserError, which names the field, for a value that no model could follow.
    """

    max_tokens: Annotated[int | None, NumberBounds(1, MAX_TOKENS)] = 16
    min_tokens: Annotated[int, COUNT] = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    speculation: bool = True
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, bounds in NUMBERS.items():
            if not bounds.allow(getattr(self, name)):
                raise _wrong(name, bounds.in_words, getattr(self, name))
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, "True or False", getattr(self, name))
        if not isinstance(self.stop, str) and not _all(self.stop, str):
            raise _wrong("stop", "a string, or several", self.stop)
        if not _all(self.bad_words, str) or not all(word.strip() for word in self.bad_words):
            raise _wrong("bad_words", "several words", self.bad_words)
        if not _are_tokens(self.stop_token_ids):
            raise _wrong("stop_token_ids", "token ids", self.stop_token_ids)
        allowed = self.allowed_token_ids
        if allowed is not None and (not allowed or not _are_tokens(allowed)):
            raise _wrong("allowed_token_ids", "token ids or None", allowed)
        self._check_bias()
        self.constraint()

    def constraint(self) -> Constraint | None:
        """Returns the constraint on the answer's format, None where there is none."""
        given = self.structured_outputs
        if given is None:
            return None
        fields = msgspec.structs.asdict(given) if isinstance(given, StructuredOutputsParams) else given
        if not isinstance(fields, Mapping):
            raise _wrong("structured_outputs", "StructuredOutputsParams, or its fields", given)
        for name in fields:
            if name not in StructuredOutputsParams.__struct_fields__:
                raise UserError(f"{shown(name)} is no field of StructuredOutputsParams", "structured_outputs")
        try:
            return constraint_of(msgspec.convert(dict(fields), StructuredOutputsParams))
        except msgspec.ValidationError as error:
            raise UserError(f"structured_outputs: {error}", "structured_outputs") from None

    def _check_bias(self) -> None:
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or not _all(bias, Integral) or not _all([*bias.values()], Real):
            raise _wrong("logit_bias", "a mapping from token ids to numbers", bias)
        if not all(abs(value) <= FLOAT32_MAX or value == -inf for value in bias.values()):
            raise _wrong("logit_bias", "finite, or -inf to ban a token", bias)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings; an empty one stops nothing."""
        return tuple(filter(None, (self.stop,) if isinstance(self.stop, str) else self.stop))

    def sampling(self) -> TokenSampling:
        """Returns the parameters that concern the draw of a token, as the engine takes them."""
        allowed = self.allowed_token_ids
        ids = None if allowed is None else [int(token) for token in allowed]
        return TokenSampling.of(self, logit_bias=dict(self.logit_bias), allowed_token_ids=ids)


NUMBERS = bounds_of(SamplingParams)
"""The bounds of every sampler: the library takes these values, and HTTP fewer."""

FLAGS = tuple(field.name for field in msgspec.structs.fields(SamplingParams) if field.type is bool)


def _all(values: object, kind: type) -> bool:
    """Tells whether `values` is a collection of values of one kind; a bool is no number."""
    return (
        isinstance(values, Collection)
        and not isinstance(values, str | bytes)
        and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    )


def _are_tokens(values: object) -> bool:
    return _all(values, Integral) and all(value >= 0 for value in values)  # type: ignore[attr-defined]


def _wrong(name: str, wanted: str, value: object) -> UserError:
    return UserError(f"{name} must be {wanted}, not {shown(repr(value))}", name)
