"""A draft model on the device: a smaller model that drafts the next tokens of sequences.

It is whole on the cores of each replica's first stage, cut into as many tensor ranks as the main model: its
passes follow one another, and each would otherwise include the transfers between stages.  Its keys and values
are in as many blocks of as many positions as those of the main model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from corepipe.errors import UserError
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import CoreMemory, DeploymentLimits, Footprint
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.graph import Graph


class Draft:
    """A draft model, for any number of tensor ranks; implements `memory.CoResidentModel`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.programs = cache(self._compile)

    def add(
        self, cores: Sequence[CoreMemory], tensor: int, limits: DeploymentLimits
    ) -> tuple[CoreMemory, ...]:
        own = [Footprint.of(program).core(limits) for program in self.programs(tensor)]
        both = [
            CoreMemory(core.weights + more.weights, core.block + more.block, max(core.buffers, more.buffers))
            for core, more in zip(cores, own, strict=False)
        ]
        return (*both, *cores[tensor:])

    def check(self, tensor: int) -> None:
        self.programs(tensor)

    def _compile(self, tensor: int) -> tuple[Program, ...]:
        """Returns the Programs of one replica.  Raises UserError where the model cannot be cut into so many
        ranks."""
        try:
            return compile_graph(self.graph, Placement(tensor=tensor))
        except UserError as error:
            raise UserError(
                f"--speculative-config: model {self.graph.name}: {error.message}", "speculative_config"
            ) from error
