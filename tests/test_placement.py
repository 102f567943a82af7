"""The same tokens wherever the parts of the model are: SmolLM2 on pipelines, ranks and replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.kernels import native
from corepipe.models import registry
from corepipe.models.registry import Model
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import AllGather, AllReduce
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.rounds import Rounds
from corepipe.neuron.timing.timeline import Timeline, Timing
from tests.parity import real
from tests.reference.executor import tensor_parallel_bound
from tests.spans import Span, busy_cores, pipe_fill
from tests.support import F32, Bound, IsolatedCores, answers, default_model, greedy, prompt_logits

ONE_CORE = Placement()
EXACT = [*(Placement(pipeline=stages) for stages in (2, 3, 5, 30)), Placement(data=2)]
FEW = [Placement(pipeline=3), Placement(pipeline=30), Placement(data=2)]
SPLIT = [Placement(tensor=3), Placement(pipeline=2, tensor=3)]
PROMPT, CHUNK, NEW = 70, 32, 6

QUICK = [("int8", SPLIT[0]), ("bf16", SPLIT[1])]
TINY = Path(__file__).parent / "data" / "tiny" / "smollm2"


def name(placement: Placement) -> str:
    return f"p{placement.pipeline}t{placement.tensor}d{placement.data}"


@pytest.fixture(scope="module")
def model() -> Model:
    return default_model()


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native().Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def prompt(model: Model) -> list[int]:
    text = real.PERPLEXITY_TEXT.read_text(encoding="utf-8")
    return model.tokenizer().encode(text)[:PROMPT]


@pytest.mark.parametrize(
    ("fmt", "placements"),
    [("int8", FEW), *(pytest.param(fmt, EXACT, marks=pytest.mark.slow) for fmt in FORMATS)],
    ids=str,
)
def test_pipelines_and_replicas_give_the_same_bits(
    model: Model, pool: Any, prompt: list[int], fmt: str, placements: list[Placement]
) -> None:
    """The small models of `tests/test_families.py` are in pipelines and replicas in every format."""
    bound = Bound.of(model, fmt)
    whole = bound.executor(ONE_CORE, pool)
    expected = prompt_logits(whole, prompt, CHUNK)
    tokens, rows = greedy(whole, prompt, NEW, CHUNK)
    for placement in placements:
        for replica in [bound.executor(placement, pool) for _ in range(placement.data)]:
            np.testing.assert_array_equal(prompt_logits(replica, prompt, CHUNK), expected, name(placement))
            found, found_rows = greedy(replica, prompt, NEW, CHUNK)
            assert found == tokens
            np.testing.assert_array_equal(found_rows, rows, name(placement))


@pytest.fixture(scope="module")
def fp32_logits(model: Model, pool: Any, prompt: list[int]) -> F32:
    return prompt_logits(Bound.of(model, "fp32").executor(ONE_CORE, pool), prompt, CHUNK)


@pytest.mark.parametrize(
    ("fmt", "placement"),
    [
        pytest.param(fmt, place, marks=[] if (fmt, place) in QUICK else pytest.mark.slow)
        for fmt in FORMATS
        for place in SPLIT
    ],
    ids=str,
)
def test_tensor_parallel_logits_stay_within_their_bound(
    model: Model, pool: Any, prompt: list[int], fp32_logits: F32, fmt: str, placement: Placement
) -> None:
    """Logits are as near to fp32 as the whole model's: closer than the wide bound of 30 layers."""
    bound = Bound.of(model, fmt)
    whole = prompt_logits(bound.executor(ONE_CORE, pool), prompt, CHUNK)
    split = prompt_logits(bound.executor(placement, pool), prompt, CHUNK)
    assert np.abs(split - whole).max() <= tensor_parallel_bound(bound.programs(placement), whole)
    assert not np.array_equal(split, whole)  # the sums really are split
    assert (split.argmax(1) == whole.argmax(1)).mean() >= (1 if fmt == "fp32" else 0.9)
    if fmt != "fp32":
        assert np.abs(split - fp32_logits).mean() <= 1.25 * np.abs(whole - fp32_logits).mean()


class Scrambler:
    """Keeps the memory of every core but the one that runs scrambled: weights, KV cache, activations.

    The values that a core hands to a collective, and takes from it, are the link to the other cores and stay
    as they are while the core waits there.  `stride`: every how many bytes of a weight one is flipped.
    `forgets` = (core, kind): this memory of this core is not put right when the core runs.
    """

    def __init__(self, cores: IsolatedCores, stride: int = 1, forgets: tuple[int, str] | None = None) -> None:
        self.running: int | None = None
        self.switches = 0
        self._cores = list(zip(cores.cores, cores.copies, strict=True))
        self._stride = stride
        self._forgets = forgets
        self._meetings = Meetings(cores)
        self._hidden = [self._memory(core, set()) for core in range(len(self._cores))]
        for memories in self._hidden:
            flip(memories.values())

    def __call__(self, core: int) -> None:
        if self.running is not None:
            self._meetings.run(self.running)
            self._hidden[self.running] = self._memory(self.running, self._meetings.links(self.running))
            flip(self._hidden[self.running].values())
        flip(parts for kind, parts in self._hidden[core].items() if (core, kind) != self._forgets)
        self.running = core
        self.switches += 1

    def _memory(self, core: int, links: set[int]) -> dict[str, list[np.ndarray]]:
        native_core, copies = self._cores[core]
        activations = native_core.native.memory()
        return {
            "weights": [t.data[:: self._stride] for t in copies.tensors.values()],
            "cache": list({id(cache): cache.memory() for cache, _ in native_core.caches.values()}.values()),
            "activations": [m for i, m in enumerate(activations) if i not in links],
        }


def flip(memories: Iterable[list[np.ndarray]]) -> None:
    """Scrambles, or puts right again."""
    for parts in memories:
        for part in parts:
            np.bitwise_xor(part, 0x55, out=part)


class Meetings:
    """The collective at which each rank waits: a rank runs until its next one, and the last rank computes it.

    The last collective gathers the logits and ends the batch.
    """

    def __init__(self, cores: IsolatedCores) -> None:
        self._buffers = [
            [
                {core.buffer(op.x), core.buffer(op.out)}
                for op in p.ops
                if isinstance(op, AllReduce | AllGather)
            ]
            for core, p in zip(cores.cores, cores.programs, strict=True)
        ]
        self._reached = [0] * len(self._buffers)

    def run(self, core: int) -> None:
        """Core `core` has run until it had to wait, or to the end of the batch."""
        self._reached[core] += 1
        if min(self._reached) == self._reached[core]:
            self._reached[core] += 1
        if self._reached[core] > len(self._buffers[core]):
            self._reached = [0] * len(self._buffers)

    def links(self, core: int) -> set[int]:
        """The buffers of the collective that the core waits at."""
        at, buffers = self._reached[core], self._buffers[core]
        return buffers[at - 1] if 0 < at <= len(buffers) else set()


@pytest.fixture(scope="module", params=["tiny", pytest.param("default", marks=pytest.mark.slow)])
def scrambled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bound, int]:
    """A model of three layers and three heads, and every how many bytes of its weights one is scrambled."""
    if request.param == "default":
        return Bound.of(default_model(), "int8"), 9973
    return Bound.of(registry.load(TINY), "int8", tmp_path_factory.mktemp("packed")), 1


@pytest.mark.parametrize("placement", [Placement(pipeline=3), Placement(tensor=3)], ids=name)
def test_a_core_uses_no_memory_but_its_own(
    scrambled: tuple[Bound, int], pool: Any, placement: Placement
) -> None:
    bound, stride = scrambled
    prompt = [*range(5, 45)]
    expected = greedy(bound.executor(placement, pool), prompt, 3, CHUNK)
    cores = IsolatedCores(bound, placement, pool)
    scrambler = Scrambler(cores, stride)
    cores.native.watch(scrambler)
    tokens, rows = greedy(cores, prompt, 3, CHUNK)
    assert scrambler.switches > 2 * 3
    assert tokens == expected[0]
    np.testing.assert_array_equal(rows, expected[1])


@pytest.mark.parametrize("kind", ["weights", "cache", "activations"])
def test_a_core_does_use_its_own_memory(scrambled: tuple[Bound, int], pool: Any, kind: str) -> None:
    """The control: a core that runs on scrambled memory of any one kind is noticed.

    Activations must outlive a switch of cores, which they do only where ranks wait for each other.
    """
    bound, stride = scrambled
    placement, prompt = Placement(tensor=3), [*range(5, 13)]
    _, expected = greedy(bound.executor(placement, pool), prompt, 2)
    cores = IsolatedCores(bound, placement, pool)
    cores.native.watch(Scrambler(cores, stride, forgets=(1, kind)))
    _, rows = greedy(cores, prompt, 2)
    assert not np.array_equal(rows, expected)


class RecordedTimeline:
    """A replica's timeline that keeps the spans."""

    def __init__(self, timeline: Timeline) -> None:
        self.spans: list[Span] = []
        self._timeline = timeline
        self._batches = 0

    def submit(self, shape: StepShape, now: float) -> Timing:
        timing = self._timeline.submit(shape, now)
        self.spans += Span.of(self._batches, timing.spans)
        self._batches += 1
        return timing

    @property
    def cost(self) -> CostModel:
        return self._timeline.cost

    @property
    def rounds(self) -> Rounds:
        return self._timeline.rounds

    @property
    def work_seconds(self) -> float:
        return self._timeline.work_seconds

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        return self._timeline.busy_seconds


def test_a_pipeline_is_full_of_different_batches(model: Model) -> None:
    """Twelve requests on three stages: batches of about the same size follow each other from core to core."""
    config = EngineConfig(
        model=str(model.path), instance="inf2.24xlarge", pipeline=3, tensor=1, data=1, clock="virtual",
        max_model_len=256, max_num_seqs=12, profile="async",
    )  # fmt: skip
    loaded = assemble(config, lambda _what, _done: None)
    timeline = RecordedTimeline(loaded.replicas[0].timeline)
    driver = Driver(replace(loaded, replicas=(replace(loaded.replicas[0], timeline=timeline),)))
    prompts = {str(i): list(range(5 + i, 69 + i)) for i in range(12)}
    found = answers(
        driver, [Submit(i, ids, 40, TokenSampling(temperature=0.0)) for i, ids in prompts.items()]
    )
    driver.close()
    assert {len(a.tokens) for a in found.values()} == {40}
    spans = timeline.spans
    end = max(span.end for span in spans)
    start, stop = 0.2 * end, 0.8 * end
    inside = [s for s in spans if s.start >= start and s.end <= stop]
    for first in inside:
        others = [s for s in inside if s.core != first.core and s.start < first.end and s.end > first.start]
        assert all(s.batch != first.batch for s in others)
    seconds = busy_cores(spans, start, stop)
    busy = sum(cores * time for cores, time in seconds.items()) / (3 * (stop - start))
    assert busy > 0.95  # the rest is the imbalance of stages of whole layers
    assert pipe_fill(spans, 3, start, stop) >= 3 * 0.95 - 2  # all three at once
