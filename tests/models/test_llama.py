"""Every family compared with the logits that transformers computed for the same checkpoint."""

from __future__ import annotations

import json

import numpy as np
import pytest

from corepipe.models import registry
from corepipe.neuron.axes import vocabulary
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Attention
from corepipe.neuron.values import WeightRole
from tests.models import interpreter
from tests.parity.families import FAMILIES, TinyFamily

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)


@each_family
def test_logits_equal_those_of_transformers(family: TinyFamily) -> None:
    model = registry.load(family.path)
    prompt = json.loads((family.path / "golden.json").read_text())["prompts"][-1]
    expected = np.load(family.path / "golden.npz")["logits"]
    got = interpreter.logits(model.graph(FORMATS["fp32"]), model.checkpoint.read, prompt)
    np.testing.assert_allclose(got, expected, atol=2e-4, rtol=2e-4)


@each_family
def test_greedy_tokens_equal_those_of_transformers(family: TinyFamily) -> None:
    model = registry.load(family.path)
    golden = json.loads((family.path / "golden.json").read_text())
    graph = model.graph(FORMATS["fp32"])
    for prompt, answer in zip(golden["prompts"], golden["tokens"], strict=True):
        choices = interpreter.logits(graph, model.checkpoint.read, prompt + answer).argmax(-1)
        assert choices[len(prompt) - 1 : -1].tolist() == answer


@each_family
def test_rotary_frequencies_equal_those_of_transformers(family: TinyFamily) -> None:
    config = registry.load(family.path).config
    golden = np.load(family.path / "golden.npz")
    spec = config.rope.spec(config.heads.head_dim)
    np.testing.assert_array_max_ulp(np.array(spec.inv_freq, np.float32), golden["inv_freq"], maxulp=1)
    assert spec.attention_factor == pytest.approx(float(golden["attention_factor"]), rel=1e-6)


@each_family
def test_widths_and_axes_agree(family: TinyFamily) -> None:
    graph = registry.load(family.path).graph(FORMATS["int8"])
    assert [v.id for v in (op.out for op in graph.ops)] == list(range(len(graph.ops)))
    for op in graph.ops:
        for spec in op.weights:
            assert len(spec.axes) == len(spec.shape)
            if spec.role is WeightRole.MATRIX:
                assert spec.shape == (op.out.width, op.inputs[0].width)
                assert spec.axes == (op.out.axis, op.inputs[0].axis)
    assert graph.logits.axis == vocabulary(graph.vocab_size)


@each_family
def test_layers_are_labelled_in_order(family: TinyFamily) -> None:
    graph = registry.load(family.path).graph(FORMATS["bf16"])
    labels = [op.layer for op in graph.ops]
    assert labels == sorted(labels)
    assert (labels[0], labels[-1]) == (-1, graph.num_layers)


def test_the_window_is_the_only_difference_of_mistral() -> None:
    windows = {
        f.name: [
            op.window for op in registry.load(f.path).graph(FORMATS["fp32"]).ops if isinstance(op, Attention)
        ]
        for f in FAMILIES
    }
    assert windows["mistral"] == [16, 16]
    assert windows["qwen2"] == [None, 12]
    assert windows["qwen3"] == windows["llama2"] == [None, None]
