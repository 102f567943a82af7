"""Device memory: the bytes that a deployment needs on each core, the KV blocks that fit, and what to use if
it does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from math import inf

from corepipe.errors import UserError
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.hardware import GIB, MIB, Instance
from corepipe.neuron.chips.native_plugin import KvBudget
from corepipe.neuron.compile.compiler import (
    compile_graph,
    kv_bytes_per_token,
    state_bytes,
    weight_bytes_by_format,
)
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program, of_each
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Linear
from corepipe.neuron.ops.base import Transfer
from corepipe.neuron.values import WANTED, Value

Compile = Callable[[Placement], Sequence[Program]]
"""Makes the Programs of one replica under a placement, as `compiler.compile_graph` does."""


@dataclass(frozen=True, slots=True)
class DeploymentLimits:
    """The load that a deployment must hold at once, as in EngineConfig.

    `max_blocks` bounds the KV blocks, and so does the `kv_budget` of the software, if it has one.  beside: a
    second model on the same cores.  adapter_ranks: the ranks of all LoRA adapters together.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    max_blocks: int
    kv_budget: KvBudget | None = None
    beside: Draft | None = None
    adapter_ranks: int = 0

    @property
    def blocks_per_sequence(self) -> int:
        """KV blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """Bytes on one core.

    block: one KV block of all its layers, or a sequence's state.  buffers: activations of a step.  states:
    those of all sequences, where there are KV blocks as well.
    """

    weights: int
    block: int
    buffers: int
    states: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a deployment that fits.

    num_blocks: KV blocks per replica, 0 where the model keeps nothing in them; cores: those of one replica.
    """

    num_blocks: int
    cores: tuple[CoreMemory, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block on all cores of a replica."""
        return sum(core.block for core in self.cores)


def plan_memory(
    programs: Sequence[Program],
    placement: Placement,
    instance: Instance,
    limits: DeploymentLimits,
    recompile: Compile | None = None,
) -> MemoryPlan:
    """Plans the memory of a deployment on an instance, its replicas on consecutive cores from core 0.

    With `recompile` the error can suggest another tensor degree too.  Raises UserError where the instance has
    too few cores, or cannot hold one sequence of `max_model_len`: a line that says what to use, and then a
    table of the bytes per core.
    """
    cores = measure(programs, limits)
    if placement.cores <= instance.cores:
        blocks = blocks_that_fit(cores, placement.data, instance, limits.kv_budget)
        if blocks >= limits.blocks_per_sequence:
            kept = any(core.block for core in cores)
            return MemoryPlan(min(blocks, limits.max_blocks) if kept else 0, cores)
    advice = _advice(programs, placement, limits, recompile)
    if placement.cores > instance.cores:
        raise UserError(_too_few_cores(placement, instance, advice), "instance")
    raise UserError(_too_little_memory(cores, placement, instance, limits, advice), "instance")


class Draft:
    """A draft model on the device, for any number of tensor ranks: it drafts the next tokens of sequences.

    It is whole on the cores of each replica's first stage, cut into as many tensor ranks as the main model:
    its passes follow one another, and each would otherwise include the transfers between stages.  Its keys
    and values are in as many blocks of as many positions as those of the main model.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.programs = cache(self._compile)

    def add(
        self, cores: Sequence[CoreMemory], tensor: int, limits: DeploymentLimits
    ) -> tuple[CoreMemory, ...]:
        """Returns the memory that the cores of a replica need for both models; the first stage has `tensor`
        cores.

        Raises UserError where the model cannot be cut into so many ranks.
        """
        bare = replace(limits, adapter_ranks=0)
        own = [Footprint.of(program).core(bare) for program in self.programs(tensor)]
        both = [
            CoreMemory(core.weights + more.weights, core.block + more.block, max(core.buffers, more.buffers))
            for core, more in zip(cores, own, strict=False)
        ]
        return (*both, *cores[tensor:])

    def check(self, tensor: int) -> None:
        """Raises UserError as `add` does."""
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


def measure(programs: Sequence[Program], limits: DeploymentLimits) -> tuple[CoreMemory, ...]:
    """Returns the bytes needed on each core of a replica."""
    cores = of_replica(of_each(programs, Footprint.of), limits)
    if limits.beside is None:
        return cores
    return limits.beside.add(cores, sum(program.stage == 0 for program in programs), limits)


def of_replica(footprints: Sequence[Footprint], limits: DeploymentLimits) -> tuple[CoreMemory, ...]:
    """Returns the bytes needed on each core; where any core keeps data per token, states are kept beside the
    KV blocks."""
    paged = any(footprint.token for footprint in footprints)
    known = {one: one.core(limits, paged=paged) for one in dict.fromkeys(footprints)}
    return tuple(known[footprint] for footprint in footprints)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that a core needs, for any limits.

    token: bytes of keys and values of one token; state: bytes of a sequence's state in recurrent layers.
    alive: bytes of the activations that are alive at once; moved: bytes of a payload that is sent or
    received.  Both are pairs (per row of logits, per other row), and the largest counts.  adapter: bytes of
    a LoRA adapter of all Linears, for each of its ranks.
    """

    weights: int
    token: int
    state: int
    alive: frozenset[tuple[int, int]]
    moved: frozenset[tuple[int, int]]
    adapter: int

    @classmethod
    def of(cls, program: Program) -> Footprint:
        linears = [op for op in program.ops if isinstance(op, Linear)]
        moved = (op.out for op in program.ops if isinstance(op, Transfer))
        return cls(
            weights=sum(weight_bytes_by_format(program).values()),
            token=kv_bytes_per_token(program),
            state=state_bytes(program),
            alive=frozenset(_alive(program)),
            moved=frozenset(_row_bytes(value, program) for value in moved),
            adapter=sum(op.out.width + op.x.width for op in linears) * program.format.compute.bytes,
        )

    def core(self, limits: DeploymentLimits, *, paged: bool = True) -> CoreMemory:
        """Returns the bytes for these limits: the most activations alive at once, plus two of the largest
        payload.

        A block holds tokens if `paged`, and a state otherwise.
        """
        rows = limits.max_num_seqs, limits.max_num_batched_tokens
        alive, moved = (
            max((rows[0] * logits + rows[1] * others for logits, others in parts), default=0)
            for parts in (self.alive, self.moved)
        )
        buffers, weights = alive + 2 * moved, self.weights + self.adapter * limits.adapter_ranks
        if not paged:
            return CoreMemory(weights, self.state, buffers)
        return CoreMemory(weights, self.token * limits.block_size, buffers, self.state * limits.max_num_seqs)


def blocks_that_fit(
    cores: Sequence[CoreMemory], data: int, instance: Instance, budget: KvBudget | None = None
) -> int:
    """Returns the KV blocks that fit for each of `data` replicas; negative where even weights and buffers do
    not fit."""
    fixed, weights, growing = Counter[int](), Counter[int](), Counter[int]()
    for i in range(len(cores) * data):
        core, bank = cores[i % len(cores)], instance.bank_of(i)
        fixed[bank] += core.weights + core.buffers + core.states
        weights[bank] += core.weights
        growing[bank] += core.block
    left = {bank: instance.room(bank) - used for bank, used in fixed.items()}
    if budget is not None:
        left = {
            bank: min(room, budget.bytes(instance.room(bank), weights[bank])) for bank, room in left.items()
        }
    return min(left[bank] // max(1, growing[bank]) for bank in left)


def _alive(program: Program) -> Iterator[tuple[int, int]]:
    """Yields the bytes of the values that are alive after each Op: per row of logits, per other row."""
    last_use = {value.id: i for i, op in enumerate(program.ops) for value in (op.out, *op.inputs)}
    alive: dict[int, tuple[int, int]] = {}
    logits = others = 0
    for i, op in enumerate(program.ops):
        size = alive.get(op.out.id, (0, 0))
        alive[op.out.id] = there = _row_bytes(op.out, program, op.device_width)
        logits, others = logits + there[0] - size[0], others + there[1] - size[1]
        yield logits, others
        for value in (op.out, *op.inputs):
            if last_use[value.id] == i:
                size = alive.pop(value.id, (0, 0))
                logits, others = logits - size[0], others - size[1]


def _row_bytes(value: Value, program: Program, width: int | None = None) -> tuple[int, int]:
    """Returns the bytes of a value, or of so many elements, per row of logits and per other row: one of them
    is 0."""
    size = (value.width if width is None else width) * value.rows.each * program.format.compute.bytes
    return (size, 0) if value.rows == WANTED else (0, size)


def _advice(
    programs: Sequence[Program], placement: Placement, limits: DeploymentLimits, recompile: Compile | None
) -> str:
    """Returns the flags of the cheapest instance that fits; at equal price of the one with the fewest
    cores."""

    @cache
    def measured(candidate: Placement) -> tuple[CoreMemory, ...] | None:
        if candidate == placement:
            return measure(programs, limits)
        try:
            return measure(recompile(candidate), limits) if recompile else None
        except UserError:  # the model cannot be cut by this degree
            return None

    budget = limits.kv_budget
    for instance in sorted(INSTANCES, key=lambda i: (bool(i.hypothetical), i.price_per_hour or inf, i.cores)):
        for candidate in _candidates(placement, instance):
            cores = measured(candidate)
            fitting = blocks_that_fit(cores, candidate.data, instance, budget) if cores else 0
            if fitting >= limits.blocks_per_sequence:
                return f"use {flags(instance, candidate)}"
    return "no instance of the catalogue holds it so: use fewer bytes a weight (--dtype) or more cores"


def _candidates(placement: Placement, instance: Instance) -> Iterator[Placement]:
    for tensor in sorted({placement.tensor, *instance.tensor_degrees}):
        for expert in _experts(placement, tensor):
            candidate = replace(placement, tensor=tensor, expert=expert)
            if candidate.cores <= instance.cores:
                yield candidate


def _experts(placement: Placement, tensor: int) -> list[int]:
    """Returns the `--expert` degrees to try: the requested one, and one equal to the tensor degree."""
    if placement.expert == 1:
        return [1]
    return sorted(expert for expert in {placement.expert, tensor} - {1} if expert % tensor == 0)


def flags(instance: Instance, placement: Placement) -> str:
    """Returns the flags of this deployment; degrees of 1 are left out."""
    asked = (f"--{name} {degree}" for name, degree in placement.degrees.items() if degree > 1)
    return " ".join([f"--instance {instance.name}", *asked])


def _too_few_cores(placement: Placement, instance: Instance, advice: str) -> str:
    degrees = " x ".join(f"{name} {degree}" for name, degree in placement.degrees.items())
    return f"{degrees} needs {placement.cores} NeuronCores, {instance.name} has {instance.cores}; {advice}"


def _too_little_memory(
    cores: Sequence[CoreMemory],
    placement: Placement,
    instance: Instance,
    limits: DeploymentLimits,
    advice: str,
) -> str:
    fits = blocks_that_fit(cores, placement.data, instance, limits.kv_budget) * limits.block_size
    shorter = f", or --max-model-len {fits}" if fits > 1 else ""
    head = f"the deployment does not fit the memory of {instance.name}; {advice}{shorter}"
    return "\n".join((head, "", *_table(cores, placement.data, instance, limits)))


def _table(
    cores: Sequence[CoreMemory], data: int, instance: Instance, limits: DeploymentLimits
) -> Iterator[str]:
    """Yields one line per core of the first replica; runs of equal lines become one."""
    sharing = Counter(instance.bank_of(i) for i in range(len(cores) * data))
    rows = []
    for i, core in enumerate(cores):
        sequence = core.block * limits.blocks_per_sequence + core.states
        sizes = (core.weights, sequence, core.buffers, core.weights + sequence + core.buffers)
        share = sharing[instance.bank_of(i)]
        note = "" if share == 1 else f" for {share} cores"
        rows.append((i, (*map(_size, sizes), _size(instance.room(instance.bank_of(i))) + note)))
    columns = ("weights", f"KV of {limits.max_model_len} tokens", "buffers", "total", "available")
    yield _row("core", columns)
    for cells, run in groupby(rows, key=lambda row: row[1]):
        numbers = [i for i, _ in run]
        yield _row(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]), cells)


def _row(core: str, cells: Sequence[str]) -> str:
    return f"{core:<7}" + "".join(f"{cell:>22}" for cell in cells)


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
