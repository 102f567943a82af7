"""The sampling parameters of a request: each is defined once, with its type, default, bounds and column.

The bounds of the library (`params`) and of the engine (`batch.requests`), and the arrays of a batch
(`batch.sampling`), are made from the fields of `TokenSampling`; so are the fields of bodies over HTTP, which
has bounds of its own within these (`fields_over_http`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Meta

T = TypeVar("T")

FLOAT32_MAX = 3.4e38
FLOAT32_TINY = 1.2e-38
"""A smaller number may be 0 to the sampler, which computes in float32."""
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
MAX_TOKENS = 2**31 - 1


class Column(NamedTuple):
    """The array of a SamplingBatch that has a parameter's values, as metadata of its field.

    kind: the code of its type in numpy and struct. name: of the array, where it differs from the field's.
    """

    kind: str
    name: str = ""


class NumberBounds(NamedTuple):
    """The bounds of a number, as metadata of its field: the least and the most that it may be.

    whole, optional: whether it is whole, or may be None, as the field's type says (`bounds_of`).
    """

    least: float
    most: float
    whole: bool = False
    optional: bool = False

    def allow(self, value: object) -> bool:
        """Tells whether a value is such a number; a bool is none."""
        if value is None:
            return self.optional
        kind: type = Integral if self.whole else Real
        return isinstance(value, kind) and not isinstance(value, bool) and self.least <= value <= self.most  # type: ignore[operator]

    @property
    def in_words(self) -> str:
        """The bounds in words, for an error."""
        what = "a whole number" if self.whole else "a number"
        ends = {FLOAT32_TINY: "above 0", -FLOAT32_MAX: "finite"}
        least = ends.get(self.least, f"of at least {self.least:g}")
        most = f" and at most {self.most:g}" if self.most <= 1 else ""
        return f"{what} {least}{most}{' or None' if self.optional else ''}"


class HttpField(NamedTuple):
    """The bounds of a number in bodies over HTTP, and its description there, as metadata of its field."""

    least: float
    most: float
    description: str | None = None


ANY_NUMBER = NumberBounds(-FLOAT32_MAX, FLOAT32_MAX)
COUNT = NumberBounds(0, MAX_TOKENS)


class TokenSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters by which a request's tokens are drawn, as they cross to the engine. Defaults are those
    of vLLM (facts of the OpenAI API docs)."""

    temperature: Annotated[
        float, NumberBounds(0, FLOAT32_MAX), HttpField(0, 2, "0 = greedy"), Column("f")
    ] = 1.0
    top_p: Annotated[float, NumberBounds(0, 1), HttpField(0, 1, "0 = greedy"), Column("f")] = 1.0
    top_k: Annotated[
        int, NumberBounds(-1, MAX_TOKENS), HttpField(-1, MAX_TOKENS, "0 or -1 = all"), Column("i")
    ] = 0
    """Most likely tokens to draw from; 0 or -1: all."""
    min_p: Annotated[float, NumberBounds(0, 1), HttpField(0, 1), Column("f")] = 0.0
    repetition_penalty: Annotated[
        float, NumberBounds(FLOAT32_TINY, FLOAT32_MAX), HttpField(0.01, 10), Column("f", "repetition")
    ] = 1.0
    presence_penalty: Annotated[float, ANY_NUMBER, HttpField(-2, 2), Column("f", "presence")] = 0.0
    frequency_penalty: Annotated[float, ANY_NUMBER, HttpField(-2, 2), Column("f", "frequency")] = 0.0
    seed: Annotated[
        int | None,
        NumberBounds(MIN_SEED, MAX_SEED),
        HttpField(MIN_SEED, MAX_SEED, "choice i is sampled with seed + i"),
        Column("Q"),
    ] = None
    logit_bias: dict[int, float] = {}
    logprobs: Annotated[int | None, COUNT, Column("i", "top_logprobs")] = None
    """Alternatives to report for each token: None = no logprobs, 0 = of the chosen token only."""
    prompt_logprobs: Annotated[int | None, COUNT] = None
    allowed_token_ids: list[int] | None = None
    """The tokens that may be drawn; None: every token."""

    @classmethod
    def of(cls, source: object, **others: object) -> TokenSampling:
        """Copies the fields of these names from `source`, but for those in `others`; a `top_p` of 0 makes
        it greedy."""
        values: dict[str, Any] = {n: getattr(source, n) for n in cls.__struct_fields__ if n not in others}
        values.update(others)
        if values["top_p"] == 0:
            values["temperature"] = 0.0
        return TokenSampling(**values)


def fields_over_http() -> Iterator[tuple[str, Any, Any]]:
    """Yields the name, type and default of the sampling parameters that every body for tokens has."""
    defaults = TokenSampling()
    for name, kind, field in _metadata(TokenSampling, HttpField):
        number: Any = Annotated[(get_args(kind) or (kind,))[0], Meta(ge=field.least, le=field.most)]
        whole: Any = number | None if NoneType in get_args(kind) else number
        yield name, Annotated[whole, Meta(description=field.description)], getattr(defaults, name)


def bounds_of(struct: type[msgspec.Struct]) -> Mapping[str, NumberBounds]:
    """Returns the bounds of each field that has some, by its name."""
    return {
        name: bounds._replace(whole=kind in (int, int | None), optional=NoneType in get_args(kind))
        for name, kind, bounds in _metadata(struct, NumberBounds)
    }


def columns_of(struct: type[msgspec.Struct]) -> Mapping[str, Column]:
    """Returns the column of each field that has one, by the field's name."""
    return {name: column._replace(name=column.name or name) for name, _, column in _metadata(struct, Column)}


def _metadata(struct: type[msgspec.Struct], kind: type[T]) -> Iterator[tuple[str, Any, T]]:
    """Yields each field's name, type and metadata of the type `kind`."""
    for field in msgspec.structs.fields(struct):
        for each in get_args(field.type):
            if isinstance(each, kind):
                yield field.name, get_args(field.type)[0], each
