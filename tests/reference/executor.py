"""The reference executor: runs the Programs of one replica with `arithmetic`, slowly and plainly."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from corepipe.neuron.compile.program import Program, cores_of_a_stage
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.adapters import AdapterLayers
from corepipe.neuron.numerics.arithmetic import F32, INT8_MAX
from corepipe.neuron.ops import AllReduce, SelectiveScan
from corepipe.neuron.step import StepInputs
from tests.reference.arithmetic import unit
from tests.reference.core import Links, ReadTensor, ReferenceCore, Run
from tests.reference.ops import compute


def read_tied(graph: Graph, read: ReadTensor) -> ReadTensor:
    """Adapts `read`, which takes names of a checkpoint's tensors, to names of the graph's weights."""
    return lambda name: read(graph.tied.get(name, name))


class ReferenceExecutor:
    """Runs the batches of one replica.

    programs: the compiler's, index stage * cores of a stage + rank.  read: reads the whole weight of a name
    in the Programs (see `read_tied`).  Each core's cache has `blocks` blocks of `block_size` positions, in
    the compute format or, with `int8_cache`, in int8.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        read: ReadTensor,
        blocks: int,
        block_size: int,
        *,
        int8_cache: bool = False,
    ) -> None:
        cores = cores_of_a_stage(programs)
        self.cores = [
            ReferenceCore(p, read, blocks, block_size, cores, int8_cache=int8_cache) for p in programs
        ]

    def values(self, inputs: StepInputs) -> F32:
        """Runs a batch on all cores; returns the last core's first output [R or M, width].

        Raises RuntimeError where every unfinished core waits for another.
        """
        links = Links()
        runs = [Run(core, inputs, links) for core in self.cores]
        while any(_advance(run) for run in runs):
            pass
        if not all(run.done for run in runs):
            raise RuntimeError("the Programs wait for each other")
        return runs[-1][self.cores[-1].program.outputs[0].value]

    def load(self, slot: int, adapter: AdapterLayers) -> None:
        """Puts an adapter into a slot."""
        for core in self.cores:
            core.load(slot, adapter.layers)

    def close(self) -> None:
        """Does nothing: memory is freed with the objects."""


def _advance(run: Run) -> bool:
    """Runs Ops until one must wait for another core; returns True if any ran."""
    start, ops = run.next, run.core.program.ops
    while not run.done and (out := compute(ops[run.next], run)) is not None:
        run.values[ops[run.next].out.id] = out
        run.next += 1
    return run.next > start


TENSOR_PARALLEL_UNITS = 4.0
"""Units, relative to the largest logit, that one AllReduce may move the logits by.

Fitted: over 2,000 random models of 1 to 8 layers the largest move was 0.8 of the bound, the median 0.1 (0.2
in W8A8), and neither grew with the number of layers.
"""

RECURRENT_UNITS = 16.0
"""The same for a model with scans.

A scan's result is a sum over states that may cancel; the gate makes it smaller still, and the next norm
scales the remainder to the size of all rows, with its errors.  Fitted: over 900 prompts of 60 tokens through
Mamba-2 and Bamba in five formats the largest move was 0.7 of the bound, the median row's 0.07 (fp32, W8A8).
"""


def tensor_parallel_bound(programs: Sequence[Program], logits: F32) -> float:
    """Returns how far a tensor-parallel run's logits may be from the unsplit run's `logits`, absolutely.

    `programs` are those of the split run.  Every AllReduce disturbs the residual stream by about one unit,
    and the head and the final rounding count as one more; disturbances are independent, so they grow with the
    square root of their number.  The unit is that of the compute format's last place (two for fp32, where the
    order of a sum counts as much as its rounding).  In W8A8 a disturbed activation may be rounded to the next
    of 127 steps, and shards that cut through a group of 64 have other scales: there the unit is 1 / 127.  0
    without a split.
    """
    ops = [op for p in programs if p.rank == 0 for op in p.ops]
    reduces = sum(isinstance(op, AllReduce) for op in ops)
    if not reduces:
        return 0.0
    units = RECURRENT_UNITS if any(isinstance(op, SelectiveScan) for op in ops) else TENSOR_PARALLEL_UNITS
    return units * _unit(programs[0].format) * sqrt(reduces + 1) * float(np.abs(logits).max(initial=0.0))


def _unit(fmt: Format) -> float:
    place = unit(fmt.compute) * (2 if fmt.compute is DType.FP32 else 1)
    return max(place, 1 / INT8_MAX) if fmt.activations is DType.INT8 else place
