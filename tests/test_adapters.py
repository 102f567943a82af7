"""Adapters in whole models: each row as when alone, in every family, and near to merged weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.models import registry
from corepipe.models.adapters.peft import read_adapter
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.ops import Experts
from corepipe.neuron.step import StepInputs
from tests.computed import BLOCK, POSITIONS, PROMPT, executor, in_formats, two_threads
from tests.kernels.harness import sampling
from tests.parity import adapter_cases, expected
from tests.peft_adapters import merged, random_adapter, random_peft
from tests.reference.executor import ReferenceExecutor, read_tied, tensor_parallel_bound
from tests.support import chunk_inputs, logits
from tests.test_families import NORMS_ACROSS_HEADS, ONE_GROUP_OF_NORMS
from tests.test_tiny import AGREEMENT

F32 = np.ndarray
MERGED = 5e-5
"""Largest difference of logits in fp32 from those with merged weights, as a share of the largest logit."""
TABLE = range(POSITIONS // BLOCK)


@pytest.fixture(scope="module")
def pool() -> Any:
    with two_threads() as pool:
        yield pool


def with_slot(inputs: StepInputs, slot: int) -> StepInputs:
    return replace(inputs, adapters=np.full(len(inputs.tokens), slot, np.int32))


# ---- families


@pytest.mark.parametrize("name", expected.names())
def test_it_equals_the_model_with_merged_weights(name: str, folder: Any, pool: Any, tmp_path: Path) -> None:
    """An adapter in PEFT's files, of every module that has Linears under its name in the checkpoint."""
    model = registry.load(folder(name))
    graph = model.graph(FORMATS["fp32"], POSITIONS)
    peft = random_peft(model, graph, 4)
    adapter = read_adapter(peft.write(tmp_path / "peft"), model, graph)
    other = registry.load(merged(model, graph, peft, tmp_path / "merged"))
    inputs = chunk_inputs(expected.load(name).prompt[:PROMPT], 0, blocks=TABLE)
    native = executor(model, graph, Placement(), pool)
    native.adapters.load(1, adapter)
    base, got = logits(native, inputs), logits(native, with_slot(inputs, 1))
    want = logits(executor(other, other.graph(FORMATS["fp32"], POSITIONS), Placement(), pool), inputs)
    error = np.abs(got - want).max(1) / np.abs(want).max(1)
    changed = np.abs(base - want).max(1) / np.abs(want).max(1)
    routed = any(isinstance(op, Experts) for op in graph.ops)  # a near tie may send a row to another expert
    assert np.median(error) <= MERGED if routed else error.max() <= MERGED
    assert np.median(changed) > 100 * MERGED
    np.testing.assert_array_equal(logits(native, with_slot(inputs, -1)), base)


@pytest.mark.parametrize("name", adapter_cases.OPTIONS)
def test_logits_are_pefts(name: str, folder: Any, tmp_path: Path) -> None:
    """PEFT read the same files: tests/parity/adapters.py asked it."""
    model = registry.load(folder(name))
    peft = adapter_cases.adapter_for(model, name).write(tmp_path)
    want = np.load(adapter_cases.DATA / f"{name}.npy")
    got = adapter_cases.adapted_logits(model, peft, adapter_cases.tokens(name))[-1]
    assert np.abs(got - want).max() <= adapter_cases.BOUND * np.abs(want).max()


FEW = ("bamba", "gemma3_text", "gpt2", "llama", "mamba2", "phi3")
OTHERS = [
    pytest.param(*p.values, marks=pytest.mark.slow) for p in in_formats(sorted({*expected.names()} - {*FEW}))
]


@pytest.mark.parametrize(("name", "fmt"), [*in_formats(FEW), *OTHERS])
def test_kernels_agree_with_the_twin_and_ranks_with_one_core(
    name: str, fmt: str, folder: Any, pool: Any
) -> None:
    model, prompt = registry.load(folder(name)), expected.load(name).prompt[:PROMPT]
    graph = model.graph(FORMATS[fmt], POSITIONS)
    if any(isinstance(op, Experts) for op in graph.ops):
        pytest.skip("tests/test_families.py compares mixtures; their Linears are those of other models")
    adapter = random_adapter(graph, 6, seed=1)
    inputs = with_slot(chunk_inputs(prompt, 0, blocks=TABLE), 0)
    native = executor(model, graph, Placement(), pool)
    twin = ReferenceExecutor(
        compile_graph(graph, Placement()), read_tied(graph, model.checkpoint.read), POSITIONS // BLOCK, BLOCK
    )
    for one in (native.adapters, twin):
        one.load(0, adapter)
    got, wanted = logits(native, inputs), twin.values(inputs)
    assert (np.abs(got - wanted).max(1) <= AGREEMENT[fmt] * np.abs(wanted).max(1)).all()
    if name in ONE_GROUP_OF_NORMS or model.config.model_type in NORMS_ACROSS_HEADS:
        return
    split = executor(model, graph, Placement(tensor=2), pool)
    split.adapters.load(0, adapter)
    bound = tensor_parallel_bound(compile_graph(graph, Placement(tensor=2)), got)
    assert np.abs(logits(split, inputs) - got).max() <= bound


# ---- many at once

SLOTS = 16


@dataclass(frozen=True)
class Asked:
    """A request: its tokens, how many of them are its prompt, and the slot of its adapter."""

    tokens: Sequence[int]
    prompt: int
    slot: int

    def chunks(self, size: int) -> list[range]:
        """Parts of the prompt, and each further token."""
        starts = [*range(0, self.prompt, size), *range(self.prompt, len(self.tokens))]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self.tokens)], strict=True)]


def some_requests(count: int, adapters: int) -> list[Asked]:
    rng = np.random.default_rng(9)
    return [
        Asked(rng.integers(0, expected.VOCAB, prompt + 3).tolist(), prompt, int(slot))
        for prompt, slot in zip(rng.integers(1, 40, count), rng.integers(-1, adapters, count), strict=True)
    ]


def batch(parts: Sequence[tuple[Asked, range, int]]) -> StepInputs:
    """Returns the batch of parts of requests, each with a block of its own."""
    counts = [len(part) for _, part, _ in parts]
    rows = np.arange(sum(counts), dtype=np.int32)
    slots = np.repeat([asked.slot for asked, _, _ in parts], counts).astype(np.int32)
    return StepInputs(
        np.array([asked.tokens[at] for asked, part, _ in parts for at in part], np.int32),
        np.array([at for _, part, _ in parts for at in part], np.int32),
        np.array([0, *np.cumsum(counts)], np.int32),
        np.array([[block] for *_, block in parts], np.int32),
        rows,
        adapters=slots,
    )


def answer_together(executor: NativeExecutor, requests: Sequence[Asked], size: int) -> list[F32]:
    """Computes as many requests at a time as there are blocks; returns all logits of each."""
    found: list[list[F32]] = [[] for _ in requests]
    waiting = [(i, one.chunks(size)) for i, one in enumerate(requests)][::-1]
    running: dict[int, tuple[int, list[range]]] = {}
    while waiting or running:
        for block in range(SLOTS):
            if block not in running and waiting:
                running[block] = waiting.pop()
        order = sorted(running, key=lambda block: (block * 7 + len(waiting)) % SLOTS)
        parts = [(requests[running[b][0]], running[b][1].pop(0), b) for b in order]
        values = logits(executor, batch(parts))
        for block, (_, part, _) in zip(order, parts, strict=True):
            number, left = running[block]
            found[number].append(values[: len(part)])
            values = values[len(part) :]
            if not left:
                del running[block]
    return [np.concatenate(parts) for parts in found]


def answer_alone(executor: NativeExecutor, requests: Sequence[Asked]) -> list[F32]:
    return [
        np.concatenate([logits(executor, batch([(one, part, 0)])) for part in one.chunks(len(one.tokens))])
        for one in requests
    ]


def loaded(
    model: registry.Model, graph: Graph, placement: Placement, pool: Any, count: int
) -> NativeExecutor:
    programs = compile_graph(graph, placement)
    weights = InMemoryWeights(graph, model.checkpoint.read)
    native = NativeExecutor(programs, weights, SLOTS, 64, 1024, pool)
    for slot in range(count):
        native.adapters.load(slot, random_adapter(graph, (16, 8, 4, 3)[slot % 4], seed=slot))
    return native


MANY = [
    pytest.param(32, 1000, "llama", "int8"),
    pytest.param(8, 40, "phi3", "bf16"),
    pytest.param(32, 1000, "llama", "int4-weights", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("adapters", "count", "name", "fmt"), MANY)
def test_each_row_has_the_bits_that_it_has_alone(
    adapters: int, count: int, name: str, fmt: str, folder: Any, pool: Any
) -> None:
    """Mixed requests, chunked and not, in a pipeline, on one thread and two."""
    model = registry.load(folder(name))
    graph = model.graph(FORMATS[fmt], 64)
    requests = some_requests(count, adapters)
    alone = answer_alone(loaded(model, graph, Placement(), pool, adapters), requests)
    for placement, size in ((Placement(), 64), (Placement(pipeline=2), 7)):
        together = answer_together(loaded(model, graph, placement, pool, adapters), requests, size)
        for got, want in zip(together, alone, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_batch_that_goes_on_by_itself_keeps_its_adapters(folder: Any, pool: Any) -> None:
    """The tokens that it draws are those of a batch that is submitted."""
    model = registry.load(folder("llama"))
    graph = model.graph(FORMATS["int8"], 64)
    native = loaded(model, graph, Placement(), pool, 2)
    requests = [Asked([5, 9, 2], 3, slot) for slot in (1, -1, 0, 1)]
    inputs = batch([(one, range(3), at) for at, one in enumerate(requests)])
    inputs = replace(inputs, logit_rows=inputs.sequence_starts[1:] - 1)
    greedy = sampling(4, temperature=[0.0] * 4, top_logprobs=[3] * 4)
    first = native.submit(inputs, greedy)
    following = native.go_on(first, np.array([-1], np.int32))
    drawn = native.wait(first).tokens.tolist()
    assert native.adopt(following)
    went_on = native.wait(following)
    longer = [Asked([*one.tokens, token], 3, one.slot) for one, token in zip(requests, drawn, strict=True)]
    inputs = batch([(one, range(3, 4), at) for at, one in enumerate(longer)])
    submitted = native.wait(native.submit(inputs, greedy))
    np.testing.assert_array_equal(went_on.tokens, submitted.tokens)
    np.testing.assert_array_equal(went_on.top_logprobs, submitted.top_logprobs)
    assert len({*map(tuple, went_on.top_logprobs.tolist())}) == 3
