"""Every computed family: the same answer in every placement and batch; kernels agree with the reference."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe import LLM, SamplingParams
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Experts
from tests.computed import (
    BLOCK,
    POSITIONS,
    PROMPT,
    answered,
    check_same,
    chosen,
    each_alone,
    executor,
    in_formats,
    submits,
    two_threads,
)
from tests.parity import expected
from tests.parity.evaluate import Evaluator
from tests.parity.families import TINY
from tests.parity.families import VOCAB as TINY_VOCAB
from tests.reference.executor import ReferenceExecutor, read_tied, tensor_parallel_bound
from tests.routing import Routers
from tests.support import chunk_inputs, logits
from tests.test_tiny import AGREEMENT

MODELS = expected.names()
SERVED = (
    *("bamba", "bloom", "deepseek_v3", "gemma3_text", "gpt2", "granitemoehybrid", "llama", "mamba2", "phi3"),
    "llama4_text",
    "qwen2_moe",
)
NORMS_ACROSS_HEADS = {"olmo2", "olmo3", "olmoe"}
ONE_GROUP_OF_NORMS = {"mamba2", "bamba-biases", "granitemoehybrid-dense"}
STATES = 2
"""States of a recurrent model, where others have few blocks: further requests wait."""
UNSHARED = 13
"""KV blocks of a hybrid, which shares none of such short prompts: for three of these, and one more."""
CROWDED = {"max_num_batched_tokens": 48, "num_blocks": 14}
EVERYWHERE = [
    {"crowded": CROWDED, "pipelines": {"pipeline": 2, "data": 2, "instance": "inf2.24xlarge"}},
    pytest.param({"pipeline": {"pipeline": 2}, "replicas": {"data": 2}}, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def pool() -> Any:
    with two_threads() as pool:
        yield pool


@pytest.mark.parametrize("places", EVERYWHERE, ids=" ".join)
@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_the_same_wherever_and_with_whom(
    name: str, places: dict[str, dict[str, Any]], folder: Any
) -> None:
    """The format differs from model to model, and so does the type of the cache."""
    fmt, kept = chosen(name)
    asked = submits(expected.load(name).prompt)
    graph = registry.load(folder(name)).graph(FORMATS[fmt])
    wanted = each_alone(folder(name), asked, fmt, kv_cache_dtype=kept)
    for where, options in places.items():
        states_alone = graph.is_recurrent and not graph.is_hybrid
        fewer = STATES if states_alone else UNSHARED
        few = {"num_blocks": fewer} if graph.is_recurrent and "num_blocks" in options else {}
        found, stats = answered(folder(name), asked, fmt, kv_cache_dtype=kept, **{**options, **few})
        check_same(found, wanted)
        if where == "crowded":
            assert (stats[0].preemptions > 0) is not states_alone
            assert (stats[0].prefix_hits > 0) is not graph.is_recurrent


@pytest.mark.parametrize(("name", "fmt"), in_formats(MODELS))
def test_kernels_agree_with_the_twin_and_ranks_with_one_core(
    name: str, fmt: str, folder: Any, pool: Any
) -> None:
    model, prompt = registry.load(folder(name)), expected.load(name).prompt[:PROMPT]
    graph = model.graph(FORMATS[fmt], POSITIONS)
    inputs = chunk_inputs(prompt, 0, blocks=range(POSITIONS // BLOCK))
    got = logits(executor(model, graph, Placement(), pool), inputs)
    routers = Routers(graph, lambda part: executor(model, part, Placement(), pool), AGREEMENT[fmt])
    routers.run(inputs)
    wanted = twin(model, graph, routers).values(inputs)
    assert (np.abs(got - wanted).max(1) <= AGREEMENT[fmt] * np.abs(wanted).max(1)).all()
    if name in ONE_GROUP_OF_NORMS or model.config.model_type in NORMS_ACROSS_HEADS:
        with pytest.raises(UserError, match="use --pipeline instead"):
            compile_graph(graph, Placement(tensor=2))
        return
    programs = compile_graph(graph, Placement(tensor=2))
    split = logits(executor(model, graph, Placement(tensor=2), pool), inputs)
    bound = tensor_parallel_bound(programs, got)
    if graph.format.compute is DType.FP32 or not any(isinstance(op, Experts) for op in graph.ops):
        assert np.abs(split - got).max() <= bound
        return
    bound += AGREEMENT[fmt] * float(np.abs(got).max())
    ranks = Routers(graph, lambda part: executor(model, part, Placement(tensor=2), pool), 2 * AGREEMENT[fmt])
    ranks.run(inputs)
    assert np.abs(split - twin(model, graph, ranks).values(inputs)).max() <= bound


def twin(model: registry.Model, graph: Graph, routers: Routers, **kept: bool) -> ReferenceExecutor:
    read = read_tied(graph, model.checkpoint.read)
    return ReferenceExecutor(routers.programs(graph), read, POSITIONS // BLOCK, BLOCK, **kept)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if chosen(name)[1] == "int8" else pytest.mark.slow) for name in MODELS],
)
def test_kernels_agree_with_the_twin_over_a_cache_of_int8(name: str, folder: Any, pool: Any) -> None:
    """A key or a value that a last bit moves may fall to the next of its 127 steps, in every format."""
    model, prompt = registry.load(folder(name)), expected.load(name).prompt[:PROMPT]
    graph = model.graph(FORMATS[chosen(name)[0]], POSITIONS)
    blocks, bound = POSITIONS // BLOCK, 8 / 127
    native_one = executor(model, graph, Placement(), pool, int8_cache=True)
    routers = Routers(graph, lambda part: executor(model, part, Placement(), pool, int8_cache=True), bound)
    other = twin(model, graph, routers, int8_cache=True)
    for part, start in ((prompt[:40], 0), (prompt[40:], 40)):
        inputs = chunk_inputs(part, start, blocks=range(blocks))
        routers.run(inputs)
        got, wanted = logits(native_one, inputs), other.values(inputs)
        error = np.abs(got - wanted).max(1) / np.abs(wanted).max(1)
        assert error.max() <= bound


@pytest.mark.parametrize("name", SERVED)
def test_it_is_served(name: str, tmp_path: Path) -> None:
    """A directory with a tokenizer is served over two emulated cores."""
    model = expected.load(name)
    vocab = {expected.VOCAB: TINY_VOCAB}
    shapes = {name: tuple(vocab.get(n, n) for n in shape) for name, shape in model.shapes.items()}
    folder = replace(model, config={**model.config, "vocab_size": TINY_VOCAB}, shapes=shapes).write(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / "llama2" / file, folder)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(folder), format="fp32", max_model_len=POSITIONS, pipeline=2, cache_dir=folder) as llm:
        (said,) = llm.generate([model.prompt[:PROMPT]], params)
    twin = Evaluator(registry.load(folder), "fp32", POSITIONS, "reference")
    assert twin.agreement(model.prompt[:PROMPT], said.token_ids) == 12
    assert isinstance(said.text, str)
