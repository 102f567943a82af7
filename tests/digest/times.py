"""Reads today's cost model into plain data: the one file to rewrite when the cost model's interface
changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance, dollars_per_million_tokens
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing import modes
from corepipe.neuron.timing.cost import CostModel, StepShape
from tests.digest.forms import Json
from tests.digest.models import source
from tests.digest.names import neutral


def read(model: str, cases: Mapping[str, Json]) -> Json:
    """Returns the entry of a model: the steps of each deployment that `cases` describe."""
    found = architecture(source(model))
    graphs: dict[str, Graph] = {}
    for case in cases.values():
        fmt = case["deployment"]["format"]
        graphs.setdefault(fmt, found.graph(FORMATS[fmt]))
    return {name: _case(graphs[case["deployment"]["format"]], case) for name, case in cases.items()}


def _case(graph: Graph, case: Json) -> Json:
    """Returns one deployment; {"refused": the flag} in place of its times where the model cannot be cut
    so."""
    asked = case["deployment"]
    place = Placement(asked["pipeline"], asked["tensor"], asked["data"])
    instance, profile = find_instance(asked["instance"]), PROFILES[asked["profile"]]
    try:
        programs = _programs(graph, instance, profile, Placement(place.pipeline, place.tensor))
    except UserError as error:
        return {"deployment": asked, "steps": case["steps"], "refused": error.param}
    cost = CostModel(programs, instance, profile, place.data, batch=asked["batch"])
    firsts = programs[:: place.tensor]
    return {
        "deployment": asked,
        "stages": [[program.layers.start, len(program.layers)] for program in firsts],
        "steps": {
            name: {"rows": step["rows"], "predicted": _step(cost, _shape(*step["rows"]), place)}
            for name, step in case["steps"].items()
        },
    }


def _shape(
    rows: int, sequences: int, kv_tokens: int, attended: int, logit_rows: int, source: int
) -> StepShape:
    """Returns the step that an entry's `rows` describe, in their order."""
    return StepShape((rows, logit_rows, source), sequences, kv_tokens, attended)


def _programs(
    graph: Graph, instance: Instance, profile: RuntimeProfile, placement: Placement
) -> Sequence[Program]:
    """Compiles the Programs; pipelines are balanced by predicted times, as a deployment's are."""
    if placement.pipeline == 1:
        return compile_for_timing(graph, placement)
    return modes.compiler(graph, instance, profile)(placement)


def _step(cost: CostModel, shape: StepShape, place: Placement) -> Json:
    """Returns the seconds of one step, by stage; the limiting resource and the engines' work of its first
    cores."""
    stages = range(cost.stages)
    firsts = [stage * place.tensor for stage in stages]
    found = {
        "stages": cost.stage_seconds(shape),
        "lone_stages": cost.lone.stage_seconds(shape),
        "transfers": [cost.transfer_seconds(stage, shape) for stage in stages],
        "latency": cost.latency(shape),
        "sampling": cost.sampling_seconds(shape),
        "output": cost.output_seconds(shape),
        "bounds": [_bounds(cost, core, shape) for core in firsts],
        "engines": [_engines(cost, core, shape) for core in firsts],
    }
    dollars = _dollars(cost, shape, place.data)
    return found if dollars is None else {**found, "dollars_per_million_tokens": dollars}


def _bounds(cost: CostModel, core: int, shape: StepShape) -> Json:
    explained = cost.explain(core, shape)
    seconds = {neutral("bound", bound): seconds for bound, seconds in explained.seconds.items()}
    return {"by": neutral("bound", explained.bottleneck), "seconds": seconds}


def _engines(cost: CostModel, core: int, shape: StepShape) -> Json:
    works = cost.engine_seconds(core, shape)
    return {neutral("engine", engine): seconds for engine, seconds in works.items()}


def _dollars(cost: CostModel, shape: StepShape, replicas: int) -> float | None:
    """Returns the dollars of consecutive decode steps on all replicas; None without a price."""
    price = cost.instance.price_per_hour
    if price is None or not shape.decodes:
        return None
    step = cost.latency(shape) + cost.sampling_seconds(shape) + cost.profile.host_seconds
    return dollars_per_million_tokens(price, replicas * shape.sequences / step)
