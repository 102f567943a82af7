"""Lengths of prompts and answers in tokens: a number, or a distribution written as a short text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, repeat
from math import log
from random import Random

from corepipe.errors import UserError

FORMS = "N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA[:MOST] or list:A,B,C"

_Draw = Callable[[Random], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths of at least 1 token, as the text `spec`.

    - `N`: always N.  `uniform:LOW:HIGH`: both ends included.
    - `lognormal:MEDIAN:SIGMA[:MOST]`: rounded; SIGMA is the standard deviation of the logarithm; longer
      ones are cut to MOST.
    - `list:A,B,C`: these, in turn.
    """

    spec: str

    @classmethod
    def parse(cls, spec: str | int, flag: str) -> Lengths:
        """Reads a length; raises UserError, which names `flag`, for a text in none of these forms."""
        try:
            _parse(str(spec))
        except (KeyError, ValueError) as error:
            raise UserError(
                f"--{flag} {spec}: not a length of at least 1 token; give {FORMS}", flag
            ) from error
        return cls(str(spec))

    def draw(self, random: Random) -> Iterator[int]:
        """Yields lengths without end."""
        return _parse(self.spec)(random)


def _parse(text: str) -> _Draw:
    kind, _, rest = text.partition(":")
    return _FORMS[kind](rest) if rest else _fixed(text)


def _fixed(text: str) -> _Draw:
    (length,) = _whole(text)
    return lambda _random: repeat(length)


def _uniform(text: str) -> _Draw:
    low, high = _whole(*text.split(":"))
    if low > high:
        raise ValueError("the ends are in the wrong order")

    def draw(random: Random) -> Iterator[int]:
        while True:
            yield random.randint(low, high)

    return draw


def _lognormal(text: str) -> _Draw:
    median, sigma, *most = text.split(":")
    centre, spread, limits = log(float(median)), float(sigma), _whole(*most)
    if spread < 0 or len(limits) > 1:
        raise ValueError("a negative spread, or too many numbers")

    def draw(random: Random) -> Iterator[int]:
        while True:
            yield min(max(1, round(random.lognormvariate(centre, spread))), *limits, 1 << 30)

    return draw


def _list(text: str) -> _Draw:
    lengths = _whole(*text.split(","))
    return lambda _random: cycle(lengths)


_FORMS: dict[str, Callable[[str], _Draw]] = {"uniform": _uniform, "lognormal": _lognormal, "list": _list}


def _whole(*texts: str) -> list[int]:
    """Returns whole numbers of at least 1; raises ValueError."""
    numbers = [int(text) for text in texts]
    if any(number < 1 for number in numbers):
        raise ValueError("a length below 1")
    return numbers
