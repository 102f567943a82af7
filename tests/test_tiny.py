"""The smoke test: tiny checkpoints of every family, end to end, in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from corepipe import LLM, SamplingParams
from corepipe.kernels import native
from corepipe.models import registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import InMemoryWeights
from tests.reference.executor import ReferenceExecutor, read_tied
from tests.support import chunk_inputs, logits

MODELS = sorted(path.parent for path in (Path(__file__).parent / "data" / "tiny").glob("*/golden.json"))
AGREEMENT = {
    "fp32": 1e-5,
    "bf16": 4 * 2.0**-7,
    "int8-weights": 4 * 2.0**-7,
    "int8": 8 / 127,
    "int4-weights": 8 / 127,
}
"""The largest difference between kernels and reference, relative to the row's largest logit; its sources are
described in tests/neuron/test_executor.py."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts packed weights into a temporary folder."""
    monkeypatch.setenv("COREPIPE_CACHE", str(tmp_path))


def golden(path: Path) -> dict[str, list[list[int]]]:
    return json.loads((path / "golden.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_greedy_tokens_are_those_of_transformers(path: Path) -> None:
    expected = golden(path)
    count = len(expected["tokens"][0])
    with LLM(str(path), format="fp32", max_model_len=128) as llm:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        assert [o.token_ids for o in llm.generate(expected["prompts"], params)] == expected["tokens"]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_every_format_answers_text_with_text(path: Path, fmt: str) -> None:
    with LLM(str(path), format=fmt, max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
        first, second = llm.generate(["one", "two three"], params)
        again = llm.generate("two three", params)[0]
    assert (len(first.token_ids), first.finish_reason) == (8, "length")
    assert isinstance(second.text, str)
    assert (again.token_ids, again.logprobs) == (second.token_ids, second.logprobs)
    assert all(said.logprob == said.top[0][1] and len(said.top) == 2 for said in first.logprobs)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_kernels_and_twin_agree(path: Path, fmt: str) -> None:
    model = registry.load(path)
    graph = model.graph(FORMATS[fmt], 64)
    programs = compile_graph(graph, Placement())
    inputs = chunk_inputs(golden(path)["prompts"][-1], 0, blocks=(2, 0, 3, 1))
    pool = native().Pool(2)
    kernels = NativeExecutor(programs, InMemoryWeights(graph, model.checkpoint.read), 4, 16, 64, pool)
    twin = ReferenceExecutor(programs, read_tied(graph, model.checkpoint.read), 4, 16)
    got, expected = logits(kernels, inputs), twin.values(inputs)
    pool.close()
    error = np.abs(got - expected).max(1) / np.abs(expected).max(1)
    assert error.max() <= AGREEMENT[fmt]
