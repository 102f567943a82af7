"""A pipeline against one stage of the same tensor degree on the same instance: it serves as many, but for the
hand-overs that the report shows."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.simulation.report import SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Synthetic

MODELS = (
    "smollm2-135m",
    "gpt2",
    "qwen2.5-0.5b",
    "bloom-560m",
    "tinyllama-1.1b",
    "llama-3.2-1b",
    "llama-3.1-8b",
)
INSTANCES = ("inf1.24xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge")
PROFILES = ("ideal", "async", "sync", "nxdi", "vllm-neuron", "transformers-neuronx", "vllm-host-sampling")
LENGTHS = (("200", "60"), ("uniform:10:400", "uniform:5:100"), ("800", "30"), ("32", "120"))


@dataclass(frozen=True)
class Case:
    """A closed loop on one replica."""

    model: str
    instance: str
    tensor: int
    stages: int
    profile: str
    policy: str | None
    users: int
    lengths: tuple[str, str]

    @classmethod
    def of(cls, seed: int) -> Case:
        rng = random.Random(seed)
        stages = rng.choice([2, 3, 4, 6])
        return cls(
            rng.choice(MODELS),
            rng.choice(INSTANCES),
            rng.choice([1, 2, 4]),
            stages,
            rng.choice(PROFILES),
            rng.choice([None, None, "mixed", "segregated"]),
            rng.choice([stages, stages + 1, 8, 12, 32]),
            rng.choice(LENGTHS),
        )

    def run(self, stages: int | None = None) -> SimulationReport:
        return report(replace(self, stages=stages or self.stages))


@cache
def report(case: Case) -> SimulationReport:
    engine = EngineConfig(
        model=case.model,
        format="bf16",
        instance=case.instance,
        tensor=case.tensor,
        pipeline=case.stages,
        data=1,
        profile=case.profile,
        policy=case.policy,
        max_model_len=1024,
    )
    prompts, answers = (Lengths.parse(spec, "lengths") for spec in case.lengths)
    workload = Synthetic(prompts, answers, 6 * case.users, users=case.users).workload()
    return simulate(SimulationConfig(engine), workload)


def check(case: Case) -> None:
    try:
        one, deep = case.run(stages=1), case.run()
    except UserError as error:
        pytest.skip(str(error).partition(";")[0])
    share = deep.throughput.output_tokens / one.throughput.output_tokens
    assert share >= 0.98, f"{share:.3f} of one stage's tokens/s"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("users", "stages"), [(8, 4), (32, 2), pytest.param(8, 2, marks=SLOW), pytest.param(32, 4, marks=SLOW)]
)
def test_a_pipeline_of_a_large_model_serves_as_many_as_one_stage(stages: int, users: int) -> None:
    check(Case("llama-3.1-8b", "inf2.48xlarge", 2, stages, "async", None, users, ("200", "100")))


@pytest.mark.parametrize("seed", [*range(7), *(pytest.param(seed, marks=SLOW) for seed in range(7, 300))])
def test_any_pipeline_serves_as_many_as_one_stage(seed: int) -> None:
    check(Case.of(seed))


@pytest.mark.parametrize(
    ("profile", "stages"),
    [
        pytest.param(profile, stages, marks=() if row == column else SLOW)
        for row, profile in enumerate(("ideal", "async", "nxdi"))
        for column, stages in enumerate((8, 2, 3))
    ],
)
def test_a_lone_stream_loses_its_hand_overs_alone(profile: str, stages: int) -> None:
    """Prompts of one chunk: every step goes through an empty pipe."""
    case = Case("tinyllama-1.1b", "inf2.48xlarge", 1, stages, profile, None, 1, ("200", "40"))
    one, deep = case.run(stages=1), case.run()
    lost = deep.seconds - one.seconds
    assert lost == pytest.approx(deep.usage.hand_over * deep.usage.steps, rel=1e-6)
    assert one.usage.hand_over == 0


@pytest.mark.parametrize("policy", ["mixed", "segregated"])
@pytest.mark.parametrize("instance", ["inf2.48xlarge", "trn1.32xlarge"])
def test_a_long_prompts_chunks_follow_each_other_through_the_stages(policy: str, instance: str) -> None:
    """The last of 8 chunks leaves four stages after 11 of their times, not after 32."""
    engine = EngineConfig(
        model="llama-3.2-1b", format="bf16", instance=instance, tensor=1, data=1, profile="ideal",
        policy=policy, max_num_batched_tokens=512, max_model_len=8192,
    )  # fmt: skip
    load = Synthetic(Lengths.parse("4096", "lengths"), Lengths.parse("2", "lengths"), 1, users=1).workload()
    one, deep = (
        simulate(SimulationConfig(engine.model_copy(update={"pipeline": stages})), load) for stages in (1, 4)
    )
    assert one.ttft is not None
    assert deep.ttft is not None
    assert deep.ttft.mean < 0.5 * one.ttft.mean
