"""`--kernel` of commands that have no engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corepipe.cli.flags.settings import configured
from corepipe.engine.assembly.op_kernels import described_kernels, kernels_of
from corepipe.engine.config import EngineConfig
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.runtime_profile import OpKernels, RuntimeProfile
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS

UNKNOWN = "intervals are those of the software's own kernels: a simulated kernel's error is not in them"


def asked_kernels(given: Mapping[str, Any], model: Architecture) -> OpKernels | None:
    """Returns the kernels of the flags, if there are any.  Raises UserError for those that cannot be used."""
    if not given["kernel"]:
        return None
    texts = configured(EngineConfig, {"model": given["model"], "kernel": given["kernel"]}).kernels
    return kernels_of(texts, model.graph(FORMATS["bf16"]))


def kernels_in_words(
    profile: RuntimeProfile, programs: Sequence[Program], instance: Instance
) -> Iterator[str]:
    """Yields a line for each kernel of the Programs, and one on intervals."""
    for kernel in described_kernels(profile, programs, instance).get("kernels", ()):
        yield f"kernel {kernel['summary']}"
    if profile.kernels is not None:
        yield UNKNOWN
