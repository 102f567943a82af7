"""The cases that rows describe: a model on the cores of an instance, and a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from corepipe.models.registry import architecture
from corepipe.neuron.axes import AxisKind
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.constants import Constants
from corepipe.neuron.chips.hardware import GIB, Instance
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.compiler import compile_for_timing, weight_bytes_by_format
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Linear
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.uncertainty import ModelKind, architecture_of
from corepipe.neuron.values import SOURCE, TOKENS, GraphOutput, InputKind, OutputKind, StateKind, weight_bytes
from corepipe.planning.calibration.rows import (
    Raw,
    RowDegrees,
    Unpredictable,
    count,
    degrees,
    input_tokens,
    number_format,
    text,
)
from corepipe.planning.calibration.rules import IN_FORCE, Rules
from corepipe.planning.calibration.stacks import ENCODERS, ModelTraits, profile_of, sends_one_more

DEFAULT_TOKENS = 2048
"""Tokens of a whole sequence, where a row that counts input and output together does not say: that of the
published rows of that kind that do, at a batch of one."""

DEFAULT_ENCODER_TOKENS = 128
"""Tokens of a text that an encoder reads, where a row does not say: that of all published rows that do."""


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration that is measured.

    place: the instance's name and its physical cores in a logical one.  batch: sequences of a replica.
    inputs, outputs: tokens of a prompt and of an answer; longest: of the longest sequence that the graphs are
    compiled for.  encodes: the model runs once over its input; causal: it is a decoder, whose output head is
    then left out.  translates: it decodes the output of an encoder.  image: pixels per side (None: the
    model's own).  vocabulary: its tokens; architecture: the group of models with similar errors. assumed: the
    values that the row does not state, in words; else empty.
    """

    model: str
    place: tuple[str, int]
    instance: Instance = field(compare=False)
    format: Format
    degrees: RowDegrees
    profile: RuntimeProfile
    batch: int
    inputs: int
    outputs: int
    longest: int
    encodes: bool
    causal: bool
    translates: bool
    image: int | None
    vocabulary: int
    architecture: ModelKind = field(compare=False)
    assumed: str = field(compare=False)

    @property
    def placement(self) -> Placement:
        return placement(self.degrees)


class Cases:
    """Reads cases from rows, and caches what several of them need.

    profile: for all rows, instead of theirs.  rules: those in force.
    """

    def __init__(self, profile: RuntimeProfile | None = None, rules: Rules = IN_FORCE) -> None:
        self._profile = profile
        self.rules = rules
        self._graph = cache(_graph)
        self._programs = cache(self._compile)
        self._models: dict[tuple[object, ...], CostModel] = {}

    def read(self, row: Raw) -> Case:
        """Returns the case of a row.  Raises Unpredictable, or UserError for a model or an instance."""
        cut = degrees(row)
        batch = count(row, "batch_size", 1) or 1
        model, task = text(row, "model"), text(row, "task").lower()
        machine = _instance(row, cut)
        fmt = _native(number_format(row), machine)
        graph = self._graph(model, fmt, None)
        kind = ModelTraits.of(graph)
        profile = self._profile or profile_of(row, batch, cut, kind, self.rules)
        image = _image(row, graph) if kind.images else None
        graph = self._graph(model, fmt, image)
        encodes = not graph.causal or task in ENCODERS
        lengths = _lengths(row, graph, encodes, self.rules)
        held = (
            _held(graph, machine, batch * lengths.longest) if _together(row) and cut == RowDegrees() else cut
        )
        assumed = [f"the weights do not fit a core: tensor {held.tensor} is assumed"] if held != cut else []
        if _unsaid(row, graph, encodes):
            assumed.append(f"output_len is missing: all but one of {lengths.longest} tokens are assumed")
        return Case(
            model=model,
            place=(machine.name, machine.lnc),
            instance=machine,
            format=graph.format,
            degrees=held,
            profile=profile,
            batch=batch,
            inputs=lengths.inputs,
            outputs=lengths.outputs,
            longest=lengths.longest,
            encodes=encodes,
            causal=graph.causal,
            translates=kind.translates,
            image=image,
            vocabulary=graph.vocab_size,
            architecture=architecture_of(graph),
            assumed="; ".join(assumed),
        )

    def cost(self, case: Case, constants: Mapping[str, Constants] | None = None) -> CostModel:
        """Returns the case's cost model, with its profile's constants or those given.  Raises
        Unpredictable where the weights do not fit, or the model cannot be divided so."""
        key = (
            case.model,
            case.format,
            case.place,
            case.degrees,
            case.profile,
            case.batch,
            case.longest,
            case.encodes,
            case.image,
        )
        if key not in self._models:
            self._models[key] = self._cost_model(case)
        base = self._models[key]
        version = case.instance.chip.core.version
        return base.with_constants(constants[version]) if constants and version in constants else base

    def _cost_model(self, case: Case) -> CostModel:
        place = case.placement
        cut = replace(place, data=1)
        programs = self._programs(case.model, case.format, cut, case.encodes, case.image)
        _refuse_large(programs, place, case.instance)
        return CostModel(
            programs,
            case.instance,
            case.profile,
            place.data,
            batch=case.batch,
            longest=case.longest,
        )

    def _compile(
        self, model: str, fmt: Format, placement: Placement, encodes: bool, image: int | None
    ) -> tuple[Program, ...]:
        graph = self._graph(model, fmt, image)
        wanted = _headless(graph) if encodes and graph.causal else graph
        finer = placement.pipeline > graph.num_layers and not wanted.causal
        return compile_for_timing(_finer(wanted) if finer else wanted, placement)


def placement(cut: RowDegrees) -> Placement:
    """Returns the placement.  Raises UserError for expert cores that are no multiple of the tensor ranks."""
    return Placement(cut.pipeline, cut.tensor, cut.data, cut.expert)


def _graph(model: str, fmt: Format, image: int | None) -> Graph:
    found = architecture(model)
    return (found if image is None else found.resized(image)).graph(fmt)


def _image(row: Raw, graph: Graph) -> int | None:
    """Returns the pixels per side, where the row states them: "224x224", or one number where no patches are
    counted.

    Raises Unpredictable for images that are not square.
    """
    given = input_tokens(row)
    if isinstance(given, tuple):
        if given[0] != given[1]:
            raise Unpredictable(f"images of {given[0]}x{given[1]} are not square")
        return given[0]
    patches = any(part.kind is InputKind.PATCHES for part in graph.inputs)
    return None if patches else given or None


def _headless(graph: Graph) -> Graph:
    """Returns the graph up to its last hidden state, of which there is one per token."""
    ops = tuple(op for op in graph.ops if op.out.axis.kind is not AxisKind.VOCABULARY)
    states = (op.out for op in reversed(ops) if op.out.axis.kind is AxisKind.HIDDEN)
    last = next(value for value in states if value.rows == TOKENS)
    return replace(graph, ops=ops, outputs=(GraphOutput(last, OutputKind.HIDDEN),))


def _finer(graph: Graph) -> Graph:
    """Returns the graph with a part for each of its matrices instead of for each layer.

    NeuronCore Pipeline cuts within layers where it has more cores than there are layers
    (about-neuron/arch/neuron-features/neuroncore-pipeline.rst).
    """
    parts, ops = 0, []
    for op in graph.ops:
        inside = 0 <= op.layer < graph.num_layers
        parts += inside and isinstance(op, Linear)
        ops.append(replace(op, layer=max(0, parts - 1)) if op.layer >= 0 else op)
    return replace(graph, ops=tuple(ops), num_layers=max(1, parts))


def _instance(row: Raw, cut: RowDegrees) -> Instance:
    """Returns the instance; with one physical core per logical core where more cores are used than there are
    of two.

    Raises Unpredictable where it has too few cores.
    """
    found = find_instance(text(row, "instance"))
    needed = placement(cut).cores
    if needed > found.cores and found.lnc > 1:
        found = found.with_lnc(1)
    if needed > found.cores:
        raise Unpredictable(f"{needed} cores are needed and {found.name} has {found.cores}")
    return found


def _native(fmt: Format, instance: Instance) -> Format:
    """Returns the format that is computed: neuron-cc computes fp32 models in bf16 on inf1 (serving facts:
    neuron-cc --fast-math, default)."""
    if instance.chip.core.version != "v1" or fmt.compute is not DType.FP32:
        return fmt
    return Format(fmt.name, DType.BF16, DType.BF16, DType.BF16)


def _held(graph: Graph, instance: Instance, tokens: int) -> RowDegrees:
    """Returns one core; where the weights do not fit it, the fewest tensor ranks that hold them and the keys
    and values of `tokens`; where none do, the fewest that hold the weights.

    The tables that count input and output together do not all say how many cores a model took.
    """
    weights = sum(weight_bytes(spec.shape, spec.role, graph.format) for spec in graph.weights())
    if weights <= instance.bank_bytes:
        return RowDegrees()
    kept = (state.per_token for state in graph.states() if state.kind is StateKind.TOKENS)
    for held in (weights + tokens * sum(kept) * graph.format.compute.bytes, weights):
        for tensor in instance.tensor_degrees:
            if held * min(tensor, instance.cores_per_bank) <= tensor * instance.bank_bytes:
                return RowDegrees(tensor=tensor)
    return RowDegrees()


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Tokens in, tokens out, and those of the longest sequence that the graphs are compiled for."""

    inputs: int
    outputs: int
    longest: int


def _lengths(row: Raw, graph: Graph, encodes: bool, rules: Rules) -> _Lengths:
    if ModelTraits.of(graph).images:
        return _Lengths(graph.max_positions, 0, graph.max_positions)
    given, outputs, longest = input_tokens(row), count(row, "output_len", 0), count(row, "seq_len", 0)
    if isinstance(given, tuple):
        raise Unpredictable("images are read by vision models alone")
    if encodes:
        inputs = given or longest or DEFAULT_ENCODER_TOKENS
        return _Lengths(inputs, 0, max(inputs, longest))
    if _unsaid(row, graph, encodes):
        tokens = max(given, longest) or min(graph.max_positions, DEFAULT_TOKENS)
        return _Lengths(1, tokens - 1, tokens)
    given += rules.one_more_token and sends_one_more(row)
    if not given + outputs:
        raise Unpredictable("input_len and output_len are missing")
    inputs = given or 1
    if SOURCE in graph.rows:
        return _Lengths(inputs, outputs, max(longest, inputs, outputs + 1))
    return _Lengths(inputs, outputs, max(longest, inputs + outputs))


def _together(row: Raw) -> bool:
    """Tells whether the row counts input and output together, as tables before SDK 2.18 do."""
    return text(row, "task").lower().endswith("(in+out)")


def _unsaid(row: Raw, graph: Graph, encodes: bool) -> bool:
    """Tells whether such a row does not say how much of it is output."""
    return _together(row) and graph.causal and not encodes and not count(row, "output_len", 0)


def _refuse_large(programs: tuple[Program, ...], placement: Placement, instance: Instance) -> None:
    """Raises Unpredictable where the weights alone do not fit the memory banks of the cores."""
    held = max(sum(weight_bytes_by_format(p).values()) for p in {id(p.ops): p for p in programs}.values())
    sharing = min(placement.cores, instance.cores_per_bank)
    if held * sharing > instance.bank_bytes:
        raise Unpredictable(
            f"weights of {held * sharing / GIB:.1f} GiB do not fit a bank of "
            f"{instance.bank_bytes / GIB:.0f} GiB"
        )
