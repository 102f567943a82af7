"""`--kernel OP=FILE:ENTRY`: the kernels that the user gives, from texts to functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corepipe.errors import shown
from corepipe.neuron.graph import Graph
from corepipe.nki import installed
from corepipe.nki.ops.contract import Contract, refused
from corepipe.nki.ops.rows import ExpertsContract, RMSNormContract, SwiGLUContract
from corepipe.nki.ops.sequences import (
    AttentionContract,
    AttentionDecodeContract,
    ScanContract,
    ScanDecodeContract,
)
from corepipe.nki.run.loading import described, function_of

ALL: Sequence[type[Contract]] = (
    RMSNormContract,
    SwiGLUContract,
    AttentionContract,
    AttentionDecodeContract,
    ScanContract,
    ScanDecodeContract,
    ExpertsContract,
)

CONTRACTS = {contract.name: contract for contract in ALL}
"""Contracts by the name of their OP."""


@dataclass(frozen=True, slots=True)
class GivenKernel:
    """A kernel in place of an Op: `text` is OP=FILE:ENTRY."""

    contract: type[Contract]
    text: str
    function: Any

    @property
    def file(self) -> str:
        return self.text.partition("=")[2].rpartition(":")[0]


def load(texts: Sequence[str], graph: Graph) -> list[GivenKernel]:
    """Runs the files that the texts name and returns their kernels.

    Raises UserError, also for an Op that the graph has not, and for two kernels for one."""
    kernels = [_loaded(text, graph) for text in texts]
    for at, kernel in enumerate(kernels):
        if any(other.contract is kernel.contract for other in kernels[:at]):
            raise refused(kernel.text, f"there are two kernels for {kernel.contract.name}; give one")
    return kernels


def _loaded(text: str, graph: Graph) -> GivenKernel:
    name, _, place = text.partition("=")
    kinds = {type(op) for op in graph.ops}
    there = [contract.name for contract in ALL if contract.kinds in kinds]
    if name not in there:
        what = "has no such Op" if name in CONTRACTS else f"has no Op {shown(name)}"
        offered = (
            f"kernels can compute its {', '.join(there)}" if there else "kernels can compute none of its Ops"
        )
        raise refused(text, f"{graph.name} {what}; {offered}")
    try:
        with installed():
            return GivenKernel(CONTRACTS[name], text, function_of(place, "--kernel"))
    except Exception as error:  # the user's code may raise anything
        why = described(error, Path(place.rpartition(":")[0])).removeprefix(f"--kernel {place}: ")
        raise refused(text, why) from error
