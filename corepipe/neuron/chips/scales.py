"""Corrections of predicted step times for one measured model, as `corepipe fit` finds them.

A Gaussian process on the logarithm of a step's time (kriging): steps are the more alike the nearer they are,
and where nothing like them was measured the prediction stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import exp, log, log2
from typing import Any

GENERATION_SPREAD, INSTANCE_SPREAD, SIZE_SPREAD, OWN_SPREAD = 0.1, 0.05, 0.05, 0.05
"""Standard deviations of the common errors of steps: on one generation of cores; on one instance; with about
as many rows; both.  Half and twice as much fit as well (docs/decisions/2026-11-23-five-rows.md)."""

REACH = 3.0
"""Doublings of a step's rows over which likeness falls to 1/e."""

MOST_SCALE = 10.0
"""Largest correction, either way; beyond it the fit measured something else than was predicted."""


@dataclass(frozen=True, slots=True)
class Site:
    """A kind of step: whether each sequence computes one token, the cores, and the rows that it computes."""

    decodes: bool
    generation: str
    instance: str
    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a step has at least one row, not {self.rows}")

    def likeness(self, other: Site) -> float:
        """Returns the covariance of the log errors of two kinds of steps."""
        if self.decodes is not other.decodes or self.generation != other.generation:
            return 0.0
        near = exp(-abs(log2(self.rows / other.rows)) / REACH)
        here = float(self.instance == other.instance)
        common = GENERATION_SPREAD**2 + INSTANCE_SPREAD**2 * here
        return common + (SIZE_SPREAD**2 + OWN_SPREAD**2 * here) * near


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors by which steps take longer than predicted.

    prompt, decode: of all steps with prompts, and of all others; learnt: sites of measured steps, each with
    its weight.
    """

    prompt: float = 1.0
    decode: float = 1.0
    learnt: tuple[tuple[Site, float], ...] = ()

    def of(self, site: Site) -> float:
        """Returns the factor of the time of one kind of step."""
        learnt = sum(weight * site.likeness(where) for where, weight in self.learnt)
        flat = self.decode if site.decodes else self.prompt
        return flat * exp(min(log(MOST_SCALE), max(-log(MOST_SCALE), learnt)))

    def as_json(self) -> dict[str, object]:
        learnt = [{**asdict(site), "weight": weight} for site, weight in self.learnt]
        return {"prompt": self.prompt, "decode": self.decode, "learnt": learnt}


UNSCALED = Scales()
"""No correction: steps take as long as predicted."""


def parse(values: Mapping[str, Any]) -> Scales:
    """Reads the result of `as_json`, or a part of it.  Raises ValueError, KeyError or TypeError for other
    input."""
    learnt = tuple((_site(one), _number(one["weight"])) for one in values.get("learnt", ()))
    return Scales(_scale(values.get("prompt", 1.0)), _scale(values.get("decode", 1.0)), learnt)


def _site(values: Mapping[str, Any]) -> Site:
    decodes, rows = values["decodes"], values["rows"]
    if not isinstance(decodes, bool) or not isinstance(rows, int):
        raise ValueError("a site says whether its step `decodes`, and how many `rows` it has")
    return Site(decodes, str(values["generation"]), str(values["instance"]), rows)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ValueError(f"a weight must be a number, not {value!r:.40}")
    return float(value)


def _scale(value: object) -> float:
    scale = _number(value)
    if not 1 / MOST_SCALE <= scale <= MOST_SCALE:
        raise ValueError(f"a scale must be between {1 / MOST_SCALE:g} and {MOST_SCALE:g}, not {value!r:.40}")
    return scale
