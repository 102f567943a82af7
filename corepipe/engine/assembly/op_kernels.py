"""The user's kernels for Ops of the emulated model: `--kernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.program import Program
from corepipe.neuron.graph import Graph

if TYPE_CHECKING:
    from corepipe.nki.ops.kernels import ModelKernels


def with_kernels(config: EngineConfig, graph: Graph, profile: RuntimeProfile) -> RuntimeProfile:
    """Returns the software with the configured kernels.  Raises UserError for those that cannot be used."""
    if not config.kernels:
        return profile
    if config.clock == "host":
        raise UserError("--kernel: kernels have times on the device alone; add --clock device", "kernels")
    return profile.with_kernels(kernels_of(config.kernels, graph))


def kernels_of(texts: Sequence[str], graph: Graph) -> ModelKernels:
    """Returns kernels for Ops of a graph.  Raises UserError."""
    from corepipe.nki.ops.kernels import ModelKernels  # noqa: PLC0415 -- nobody else needs NKI

    return ModelKernels(texts, graph)


def settle_kernels(
    config: EngineConfig, programs: Sequence[Program], instance: Instance, profile: RuntimeProfile, rows: int
) -> None:
    """Simulates the kernels of a server at all sizes that its steps may have, so that no code of the user
    runs once it answers.  rows: of its largest batch."""
    if not config.kernels or config.clock != "device":
        return
    from corepipe.nki.ops.kernels import KernelLimits, ModelKernels  # noqa: PLC0415 -- as above

    assert isinstance(profile.kernels, ModelKernels)
    limits = KernelLimits(rows, config.max_num_seqs, programs[0].max_positions)
    core = instance.chip.core.version, instance.lnc
    for program in programs:
        profile.kernels.settle(program, core, limits)


def described_kernels(
    profile: RuntimeProfile, programs: Sequence[Program], instance: Instance
) -> dict[str, Sequence[Mapping[str, object]]]:
    """Returns `kernels`: how those of the Programs compare with their Ops, and their times; or nothing."""
    if profile.kernels is None:
        return {}
    ops = (op for program in programs for op in program.ops)
    core = instance.chip.core.version, instance.lnc
    return {"kernels": profile.kernels.describe(ops, programs[0].format, core)}
