"""Costs of Ops with simulated kernels: interpolation, and the same times wherever a step is timed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, Format
from corepipe.neuron.ops import Attention, RMSNorm, SelectiveScan
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.kernel_cost import (
    KernelAxis,
    KernelCost,
    KernelCurve,
    KernelSteps,
    KernelTime,
    PhaseCurve,
)
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import policy
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulate import run
from tests.simulation.simulations import bytes_of, limits, workload

ROWS, PROMPTS = KernelAxis((1, 128), 4), KernelAxis((128, 256), 2, apart=True)
BEFORE, CONTEXTS = KernelAxis((0, 512), 4), KernelAxis((128, 512), 4)

INF2 = instance("inf2.48xlarge")


def drawn(x: int, y: int) -> KernelTime:
    """Times with no pattern, but the same ones each time."""
    parts = np.random.default_rng([x, y]).uniform(1e-5, 1e-3, 6)
    return KernelTime(float(parts[0] + parts[1:5].max()), *parts[1:5].tolist(), 1e6 * x, 1e3 * y)


@given(st.sampled_from([1, 128, 512, 2048, 8192]), st.sampled_from([128, 512, 2048, 8192, 32768]))
def test_times_are_exact_where_the_kernel_was_simulated(x: int, y: int) -> None:
    curve = KernelCurve(drawn, ROWS, CONTEXTS)
    assert curve.numbers(x, np.array([float(y)]))[:, 0].tolist() == list(drawn(x, y))


@given(st.integers(0, 4), st.sampled_from([0, 512, 2048]))
def test_times_of_prompts_are_exact_as_well(power: int, before: int) -> None:
    curve = KernelCurve(drawn, PROMPTS, BEFORE)
    rows = 128 << power
    assert curve.numbers(rows, np.array([float(before)]))[:, 0].tolist() == list(drawn(rows, before))


@given(st.integers(128, 9000), st.integers(0, 9000))
def test_a_prompts_attention_is_met_between_the_sizes(rows: int, before: int) -> None:
    """Every row sees the tokens before the prompt, and on average half of the prompt."""

    def measure(x: int, y: int) -> KernelTime:
        return KernelTime(x * (3e-8 + 2e-10 * x / 2 + 2e-10 * y))

    found = KernelCurve(measure, PROMPTS, BEFORE).numbers(rows, np.array([float(before)]))
    assert found[0, 0] == pytest.approx(measure(rows, before).seconds, rel=1e-9)


@given(st.integers(1, 9000), st.lists(st.integers(128, 40000), min_size=1, max_size=4))
def test_a_time_that_grows_with_rows_and_contexts_is_met_between_the_sizes(
    rows: int, contexts: list[int]
) -> None:
    def measure(x: int, y: int) -> KernelTime:
        return KernelTime(1e-5 + 2e-7 * x + 3e-9 * x * y)

    found = KernelCurve(measure, ROWS, CONTEXTS).numbers(rows, np.array(contexts, np.float64))
    wanted = [measure(rows, y).seconds for y in contexts]
    assert found[0] == pytest.approx(wanted, rel=1e-9)


@given(st.integers(1, 90000))
def test_times_beyond_the_last_size_lie_on_a_line(rows: int) -> None:
    curve = KernelCurve(drawn, KernelAxis((1, 128), 4, last=2048))
    found = curve.numbers(rows, np.zeros(1))[:, 0]
    assert set(curve.known) <= {(n, 0) for n in (1, 128, 512, 2048)}
    if rows >= 512:
        low, high = np.array(drawn(512, 0)), np.array(drawn(2048, 0))
        assert found == pytest.approx(low + (rows - 512) / 1536 * (high - low), rel=1e-9)


@given(st.floats(1, 40000), st.floats(0, 40000))
def test_a_settled_kernel_never_runs_again(x: float, y: float) -> None:
    runs = []

    def measure(at: int, beside: int) -> KernelTime:
        runs.append((at, beside))
        return drawn(at, beside)

    curve = KernelCurve(measure, ROWS, CONTEXTS)
    curve.settle(x, y)
    settled = len(runs)
    for share in (1.0, 0.5, 0.01):
        curve.numbers(share * x, share * np.array([y]))
    assert len(runs) == settled


@dataclass(frozen=True)
class Kernels:
    """Kernels for some kinds of Ops, with these times at each size; `flat`: the same at all sizes."""

    kinds: tuple[type, ...]
    flat: float | None = None
    prompts: bool = True
    decodes: bool = True
    curves: dict[Any, KernelCurve] = field(default_factory=dict, compare=False)

    texts = ()

    def measure(self, x: int, y: int) -> KernelTime:
        return drawn(x, y) if self.flat is None else KernelTime(self.flat)

    def phase(self, name: str, steps: KernelSteps, *axes: KernelAxis) -> PhaseCurve:
        curve = self.curves.setdefault(name, KernelCurve(self.measure, *axes))
        return PhaseCurve(curve, steps)

    def cost(self, op: Any, own: Cost, _fmt: Format, _core: tuple[str, int]) -> Cost:
        if not isinstance(op, self.kinds):
            return own
        if isinstance(op, RMSNorm):
            rows = self.phase("rows", KernelSteps.ROWS, ROWS)
            return KernelCost(op.out.rows.number, rows, rows, own)
        prompts = self.phase("prompts", KernelSteps.PROMPTS, PROMPTS, BEFORE) if self.prompts else None
        decodes = self.phase("decodes", KernelSteps.TOKENS, ROWS, CONTEXTS) if self.decodes else None
        return KernelCost(op.out.rows.number, prompts, decodes, own)

    def describe(self, *_asked: object) -> list[dict[str, object]]:
        return []


def deployed(kernels: Kernels | None, stages: int = 1, tensor: int = 2) -> CostModel:
    model = "llama-3.2-1b" if tensor > 1 else "mamba2-130m"
    graph = architecture(model).graph(FORMATS["bf16"], 2048)
    programs = compile_for_timing(graph, Placement(stages, tensor))
    return CostModel(programs, INF2, PROFILES["vllm-neuron"].with_kernels(kernels), batch=8)


STEPS = [
    StepShape.decode(3, 700),
    StepShape.decode(8, 129),
    StepShape.of([(0, 300)], 1),
    StepShape.of([(512, 128), (0, 77)], 1),
]


@pytest.mark.parametrize("kinds", [(Attention,), (RMSNorm,), (RMSNorm, Attention)])
@pytest.mark.parametrize("shape", STEPS)
def test_a_profile_and_a_step_agree(kinds: tuple[type, ...], shape: StepShape) -> None:
    cost = deployed(Kernels(kinds))
    assert cost.op_times(0, shape)[-1].end == pytest.approx(cost.seconds(0, shape), rel=1e-12)
    assert cost.explain(0, shape).total == pytest.approx(cost.seconds(0, shape), rel=1e-12)


def test_only_the_kernels_op_has_another_time() -> None:
    """A flat time shows: that of every norm is the kernel's, in prompts and answers; all others are kept."""
    before, after = deployed(None), deployed(Kernels((RMSNorm,), flat=1e-3))
    for shape in STEPS:
        pairs = zip(before.op_times(0, shape), after.op_times(0, shape), strict=True)
        for old, new in pairs:
            same = not isinstance(old.op, RMSNorm)
            assert (new.end - new.start == pytest.approx(old.end - old.start, rel=1e-6)) is same
            assert same or new.end - new.start == pytest.approx(1e-3)


@pytest.mark.parametrize(("prompts", "decodes"), [(True, False), (False, True)])
def test_steps_without_a_kernel_keep_the_ops_own_time(prompts: bool, decodes: bool) -> None:
    kernels = Kernels((Attention,), flat=1e-3, prompts=prompts, decodes=decodes)
    before, after = deployed(None), deployed(kernels)
    for shape in STEPS:
        same = not (decodes if shape.decodes else prompts)
        assert (before.seconds(0, shape) == after.seconds(0, shape)) is same


@pytest.mark.parametrize("kernels", [Kernels((Attention,)), Kernels((Attention,), decodes=False)])
def test_many_decode_steps_at_once_take_as_long_as_one_by_one(kernels: Kernels) -> None:
    cost = deployed(kernels, stages=2)
    contexts = np.arange(5, 16000, 531, dtype=np.int64)
    at_once = cost.decode_seconds(5, contexts)
    one_by_one = [cost.stage_seconds(StepShape.decoding(5, int(n))) for n in contexts]
    assert at_once.T.tolist() == one_by_one


def test_scans_with_kernels_depend_on_the_number_of_sequences() -> None:
    cost = deployed(Kernels((SelectiveScan,)), tensor=1)
    one, two = (StepShape.of([(0, 256 // n)] * n, 1) for n in (1, 2))
    first = cost.seconds(0, one)
    assert cost.seconds(0, two) != first
    assert cost.seconds(0, one) == first


@pytest.mark.parametrize("batches", ["mixed", "segregated"])
def test_native_replicas_and_the_loop_that_serves_agree(batches: str) -> None:
    lines = [Timeline(deployed(Kernels((RMSNorm, Attention)), stages=2)) for _ in range(2)]
    config = limits(stages=2, num_blocks=2000)
    scenarios = [Scenario(config, policy(batches), [line], workload(40, 20.0)) for line in lines]
    native, plain = run(scenarios[0]), LoopedSimulation(scenarios[1]).run()
    assert bytes_of(native) == bytes_of(plain)


def test_without_kernels_nothing_differs() -> None:
    plain = PROFILES["vllm-neuron"]
    assert replace(plain).with_kernels(None) == plain
    assert plain.kernels is None
