"""Small random models of the computed families: what they are served and computed with in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Stats, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.kernels import native
from corepipe.models import registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import InMemoryWeights
from tests.parity import expected
from tests.support import Answer, answers

BLOCK, POSITIONS = 16, 96
PROMPT = 60
"""Longer than the windows of these models."""


def folders(root: Path) -> Callable[[str], Path]:
    """Writes the directory of a model below `root` when it is first needed."""
    return cache(lambda name: expected.load(name).write(root / name))


@contextmanager
def two_threads() -> Iterator[Any]:
    """A pool for executors."""
    with closing(native().Pool(2)) as pool:
        yield pool


def settings(path: Path, fmt: str = "bf16", **options: Any) -> EngineConfig:
    """On one core, unless options say otherwise."""
    roomy = {"pipeline": 1, "tensor": 1, "data": 1, "max_model_len": POSITIONS, "block_size": BLOCK}
    return EngineConfig(model=str(path), format=fmt, cache_dir=path / "cache", **{**roomy, **options})


def engine(path: Path, fmt: str = "bf16", **options: Any) -> Driver:
    return Driver(assemble(settings(path, fmt, **options), lambda _what, _done: None))


def answered(
    path: Path, asked: Sequence[Submit], fmt: str = "bf16", **options: Any
) -> tuple[dict[str, Answer], list[Stats]]:
    """Returns the answers to these requests, all at once, and the figures of their engine."""
    with closing(engine(path, fmt, **options)) as driver:
        return answers(driver, asked), driver.stats()


def each_alone(path: Path, asked: Sequence[Submit], fmt: str = "bf16", **options: Any) -> dict[str, Answer]:
    """Returns the answers to these requests, one after the other."""
    with closing(engine(path, fmt, prefix_cache=False, **options)) as driver:
        return {one.id: answers(driver, [one])[one.id] for one in asked}


def check_same(found: Mapping[str, Answer], wanted: Mapping[str, Answer]) -> None:
    """Asserts that the tokens and logprobs of answers are the same."""
    assert found.keys() == wanted.keys()
    for name, answer in wanted.items():
        assert found[name].tokens == answer.tokens, name
        assert found[name].logprobs == answer.logprobs, name


def submits(prompt: list[int]) -> list[Submit]:
    """Prompts that share a beginning, and grow out of their blocks; every other one is drawn."""
    drawn = TokenSampling(temperature=1.2, top_p=0.95, seed=7, logprobs=3)
    plain = TokenSampling(temperature=0.0, logprobs=3)
    return [
        Submit(f"r{i}", prompt[:40] + prompt[40 + i : PROMPT], 12, drawn if i % 2 else plain)
        for i in range(6)
    ]


def drawn(prompt: list[int], count: int = 5, tokens: int = 12) -> list[Submit]:
    """Prompts each of which has 50 tokens more than the one before; answers are drawn."""
    sampling = TokenSampling(temperature=1.2, top_p=0.95, seed=7, logprobs=3)
    return [Submit(f"r{i}", prompt[i : i + 50 * i + 1], tokens, sampling) for i in range(count)]


def chosen(name: str) -> tuple[str, str]:
    """A format for a model, and a type of its cache."""
    kept, fmt = divmod(crc32(name.encode()), len(FORMATS))
    return list(FORMATS)[fmt], ("auto", "int8")[kept % 2]


def in_formats(names: Iterable[str]) -> list[object]:
    """Parameters (name, format): each model in fp32, whose bounds are the tightest, and in another that is
    `chosen` for it; in all of them by `make test-slow`.  What a format does is the same in every family, and
    `tests/kernels` hold it.
    """
    return [
        pytest.param(name, fmt, marks=[] if fmt in ("fp32", quick) else pytest.mark.slow)
        for name in names
        for quick in [chosen(name)[0] if chosen(name)[0] != "fp32" else "int8"]
        for fmt in FORMATS
    ]


def executor(
    model: registry.Model, graph: Graph, placement: Placement, pool: Any, *, int8_cache: bool = False
) -> NativeExecutor:
    weights = InMemoryWeights(graph, model.checkpoint.read)
    programs, blocks = compile_graph(graph, placement), POSITIONS // BLOCK
    return NativeExecutor(programs, weights, blocks, BLOCK, POSITIONS, pool, int8_cache=int8_cache)
