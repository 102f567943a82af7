"""Each mode's choice of a placement: it fits, and keeps the degrees that were given."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from device_graphs import LIMITS, LLAMA_70B, SMOLLM2, llama

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import DeploymentLimits, plan_memory
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.modes import CONTEXT, RequestedDegrees, compiler, refuses_experts, resolve
from corepipe.neuron.timing.rounds import Rounds

SMALL = llama(replace(SMOLLM2, layers=10), "int8")
MIXTURE = architecture("mixtral-8x7b").graph(FORMATS["bf16"], 2048)
ASYNC = PROFILES["async"]
MODES = ("latency", "throughput", "auto")


@cache
def picked(mode: str, machine: str) -> tuple[Placement, str]:
    """Returns the placement for SMALL, which several tests use."""
    return resolve(mode, SMALL, instance(machine), LIMITS, ASYNC)


def test_latency_is_the_best_pipeline_on_inf1():
    """The best of all depths is chosen, though not all are tried."""
    machine = instance("inf1.24xlarge")
    placement, reason = picked("latency", machine.name)
    shape, compiled = StepShape.decode(1, 512), compiler(SMALL, machine, ASYNC)
    times = {
        n: CostModel(compiled(Placement(pipeline=n)), machine, ASYNC).latency(shape) for n in range(1, 11)
    }
    assert times[placement.pipeline] < times[1] / 1.4
    assert times[placement.pipeline] <= 1.01 * min(times.values())
    assert (placement.tensor, placement.data) == (1, 1)
    assert reason.startswith("latency: pipeline ")
    assert "throughput would give pipeline 1" in reason


@pytest.mark.parametrize("name", ["inf2.48xlarge", "trn1.32xlarge"])
def test_latency_is_tensor_parallel_elsewhere(name):
    """For a model whose weights take longer than the fixed time of the collectives."""
    graph = llama(replace(LLAMA_70B, layers=8))
    placement, _ = resolve("latency", graph, instance(name), LIMITS, ASYNC)
    assert placement.tensor > 1
    assert placement.tensor in instance(name).tensor_degrees
    assert (placement.pipeline, placement.data) == (1, 1)


@pytest.mark.parametrize("machine", INSTANCES, ids=lambda i: i.name)
def test_throughput_is_a_replica_on_each_core(machine):
    placement, _ = picked("throughput", machine.name)
    assert placement == Placement(data=machine.cores)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("machine", INSTANCES, ids=lambda i: i.name)
def test_what_is_picked_fits(machine, mode):
    placement, reason = picked(mode, machine.name)
    plan_memory(compile_graph(SMALL, placement), placement, machine, LIMITS)
    assert reason.startswith(f"{mode}: pipeline {placement.pipeline}, tensor {placement.tensor}")
    assert "\n" not in reason


@pytest.mark.parametrize("name", ["inf2.xlarge", "inf2.48xlarge", "trn1.32xlarge"])
def test_a_small_model_stays_on_one_core(name):
    """SmolLM2-135M is read in half a millisecond; the all-reduces of its 30 layers take five times that."""
    graph, machine = llama(SMOLLM2, "int8"), instance(name)
    assert resolve("latency", graph, machine, LIMITS, ASYNC)[0] == Placement()


def test_auto_spends_no_more_cores_than_latency():
    for machine in INSTANCES:
        auto, _ = picked("auto", machine.name)
        fastest, _ = picked("latency", machine.name)
        assert auto.cores <= fastest.cores
        assert auto.data == 1


def test_a_replica_larger_than_a_core():
    graph = llama(replace(LLAMA_70B, layers=40))
    placement, _ = resolve("throughput", graph, instance("inf2.48xlarge"), LIMITS, ASYNC)
    assert placement == Placement(tensor=8, data=3)


def test_a_large_model_on_inf1_is_cut_for_capacity():
    graph = llama(replace(LLAMA_70B, layers=10, vocab=32000))
    placement, _ = resolve("auto", graph, instance("inf1.24xlarge"), LIMITS, ASYNC)
    assert placement.pipeline > 4
    plan_memory(compile_graph(graph, placement), placement, instance("inf1.24xlarge"), LIMITS)


def test_what_cannot_fit_is_left_to_the_memory_plan():
    graph, machine = llama(replace(LLAMA_70B, layers=40)), instance("inf2.xlarge")
    placement, reason = resolve("latency", graph, machine, LIMITS, ASYNC)
    assert placement == Placement()
    assert "fits" in reason
    with pytest.raises(UserError, match=r"use --instance trn2\.3xlarge --tensor 4"):
        plan_memory(
            compile_graph(graph, placement), placement, machine, LIMITS, lambda p: compile_graph(graph, p)
        )


@pytest.mark.parametrize("mode", MODES)
def test_given_degrees_are_kept(mode):
    machine = instance("trn2.48xlarge")
    for given in (
        RequestedDegrees(3, 2, 5),
        RequestedDegrees(pipeline=3),
        RequestedDegrees(tensor=4),
        RequestedDegrees(data=2),
        RequestedDegrees(2, 2),
    ):
        placement, _ = resolve(mode, SMALL, machine, LIMITS, ASYNC, given)
        for name in ("pipeline", "tensor", "data"):
            assert getattr(given, name) in {None, getattr(placement, name)}


def test_throughput_is_that_of_all_replicas():
    """Cores of inf2 have their own memory, and no replica slows another one."""
    machine = instance("inf2.48xlarge")
    cost = CostModel(compiler(SMALL, machine, ASYNC)(Placement()), machine, ASYNC, batch=LIMITS.max_num_seqs)
    step = Rounds(cost, ASYNC).best(LIMITS.max_num_seqs, CONTEXT).seconds
    _, reason = picked("throughput", machine.name)
    assert f"{machine.cores * LIMITS.max_num_seqs / step:.0f} tokens/s); latency" in reason


@pytest.mark.parametrize(
    ("graph", "given", "message"),
    [
        (SMALL, RequestedDegrees(tensor=12), "--tensor 12: "),
        (MIXTURE, RequestedDegrees(expert=9), "--expert 9: "),
    ],
    ids=["tensor", "expert"],
)
def test_a_degree_that_the_model_cannot_be_cut_by_is_refused(graph, given, message):
    with pytest.raises(UserError, match=f"^{message}"):
        resolve("auto", graph, instance("trn2.48xlarge"), LIMITS, ASYNC, given)


def test_a_degree_that_the_stack_does_not_take_is_labelled():
    placement, reason = resolve(
        "auto", SMALL, instance("inf2.48xlarge"), LIMITS, ASYNC, RequestedDegrees(1, 3, 1)
    )
    assert placement.tensor == 3
    assert "emulation only" in reason
    _, reason = resolve("latency", SMALL, instance("inf1.xlarge"), LIMITS, ASYNC, RequestedDegrees(tensor=2))
    assert "on inf1 the Neuron stack takes tensor 1" in reason


def test_the_profile_prices_every_choice():
    """Graphs padded to the batch take longer on any core: fewer cores are nearly as good."""
    machine, graph = instance("inf2.48xlarge"), architecture("llama-3.1-8b").graph(FORMATS["bf16"], 2048)
    limits = DeploymentLimits(2048, 32, 512, 16, 32 * 128)
    chosen = {name: resolve("auto", graph, machine, limits, PROFILES[name])[0] for name in ("async", "nxdi")}
    assert chosen == {"async": Placement(tensor=24), "nxdi": Placement(tensor=8)}
    with pytest.raises(TypeError, match="profile"):
        CostModel(compiler(graph, machine, ASYNC)(Placement(tensor=8)), machine)


@pytest.mark.parametrize("mode", MODES)
def test_experts_are_divided_where_that_is_asked_for_alone(mode):
    machine = instance("trn2.48xlarge")
    plain, _ = resolve(mode, MIXTURE, machine, LIMITS, PROFILES["vllm-neuron"])
    assert plain.expert == 1
    asked, reason = resolve(
        mode, MIXTURE, machine, LIMITS, PROFILES["vllm-neuron"], RequestedDegrees(expert=4)
    )
    assert asked.expert == 4
    assert 4 % asked.tensor == 0
    assert f"{mode}: pipeline 1, tensor {asked.tensor}, data {asked.data}, expert 4" in reason


@pytest.mark.parametrize(
    ("profile", "placement", "sequences", "why"),
    [
        ("vllm-neuron", Placement(tensor=4), 1, None),
        ("vllm-neuron", Placement(tensor=4, expert=4), 4, None),
        ("vllm-neuron", Placement(tensor=4, expert=4), 3, "only where a batch's rows take as many"),
        ("vllm-neuron", Placement(tensor=2, expert=4), 4, "among all tensor ranks, and no other cores"),
        ("vllm-neuron-native", Placement(tensor=4, expert=4), 1, None),
        ("async", Placement(tensor=4, expert=4), 8, "async divides no experts"),
    ],
)
def test_what_the_software_does_not_divide_is_labelled(profile, placement, sequences, why):
    """A token of Mixtral is routed to two of eight experts."""
    found = refuses_experts(MIXTURE, placement, PROFILES[profile], sequences)
    assert (found is None) is (why is None)
    limits = replace(LIMITS, max_num_seqs=sequences)
    given = RequestedDegrees(1, placement.tensor, 1, placement.expert)
    _, reason = resolve("auto", MIXTURE, instance("trn2.48xlarge"), limits, PROFILES[profile], given)
    assert ("emulation only" in reason) is (why is not None)
    if why is not None:
        assert why in found
        assert why in reason


def test_what_does_not_fit_is_advised_with_its_experts_divided():
    given = RequestedDegrees(1, None, 1, 2)
    machine = instance("inf2.xlarge")
    placement, _ = resolve("auto", MIXTURE, machine, LIMITS, ASYNC, given)
    cut = compiler(MIXTURE, machine, ASYNC)
    with pytest.raises(UserError, match=r"use --instance \S+ --tensor (\d+) --expert \1"):
        plan_memory(cut(placement), placement, machine, LIMITS, cut)
