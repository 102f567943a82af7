"""Setups of small public models, for the tests of profiles."""

from __future__ import annotations

from functools import cache
from typing import Any

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.planning.profiling.profile import ProfileRun, ProfileSetup


def setup(
    model: str = "smollm2-135m",
    where: str = "inf2.48xlarge",
    fmt: str = "bf16",
    profile: str = "async",
    batch: int = 4,
    input_len: int = 100,
    decode_steps: int = 2,
    **degrees: Any,
) -> ProfileSetup:
    return ProfileSetup(
        architecture=architecture(model),
        format=FORMATS[fmt],
        instance=instance(where),
        profile=PROFILES[profile],
        batch=batch,
        input_len=input_len,
        decode_steps=decode_steps,
        max_model_len=input_len + max(1, decode_steps),
        placement=Placement(**degrees),
    )


@cache
def run(*args: Any, **kwargs: Any) -> ProfileRun:
    """Returns one run for each setup, which tests do not change."""
    return ProfileRun(setup(*args, **kwargs))
