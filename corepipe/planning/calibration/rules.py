"""The rules that were found on measured rows rather than in a document, in one table.

Each can be switched off: `benchmarks/prediction_rules.py` measures what is lost then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.timing.uncertainty import Figure, ModelKind

DRIFT = 0.006
"""Share by which each release of SDK 2 made encoders of texts on NeuronCore-v2 faster, from release 10 on.
Fitted to 50 latencies of releases 10 to 28, of 5 families (docs/prediction.md)."""

TAILS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        Figure.DECODE: (0.03, 0.0),
        Figure.FIRST_TOKEN: (0.0, 5e-3),
        Figure.THROUGHPUT: (0.04, 0.0),
        Figure.BATCH: (0.04, 0.0),
        ModelKind.ENCODER_DECODER: (0.04, 0.0),
        ModelKind.CONVOLUTION: (0.01, 0.0),
    }
)
"""By kind of figure, the share of the median and the seconds by which the p99 of a batch alone is above it:
the host's pauses, which lengthen a prompt whatever it takes.  Other quantiles follow an exponential tail.
Under load tails are those of the simulated requests."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in force.

    one_more_token: optimum-neuron's static benchmark sent a token more than it says until 2024.
    drift, tails: DRIFT and TAILS; 0 and none of them switch the rule off.
    profiles: the runtime profiles by name, whose properties are rules of the software.
    """

    one_more_token: bool = True
    drift: float = DRIFT
    tails: Mapping[str, tuple[float, float]] = field(default_factory=lambda: TAILS)
    profiles: Mapping[str, RuntimeProfile] = field(default_factory=lambda: PROFILES)


IN_FORCE = Rules()
