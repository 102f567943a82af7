"""all-MiniLM-L6-v2 itself, where it is in the cache: its task, and its vectors."""

from __future__ import annotations

import numpy as np
import pytest

from corepipe.models import hub, registry
from corepipe.models.packaged import PACKAGED, is_there
from corepipe.models.registry import Model
from corepipe.models.tasks import Task, TaskInfo, TextVectors, UnitLength
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import PoolingMode
from tests.parity.texts import LENGTHS, LONG_LENGTHS, make_texts
from tests.parity.vectors import BOUNDS, KEPT, NAME, STORED, cosines, embed


@pytest.fixture(scope="module")
def model() -> Model:
    folder = hub.cache_dir() / "models" / NAME
    if not is_there(PACKAGED[NAME], folder):
        pytest.skip(f"{NAME} is not in the cache: `corepipe pull {NAME}` fetches it")
    return registry.load(folder)


def test_it_makes_vectors_of_texts(model: Model) -> None:
    task = model.task()
    head = TextVectors(PoolingMode.MEAN, (UnitLength(),))
    assert task == TaskInfo(Task.EMBED, 256, 384, normalized=True, types=True, head=head, vocab_size=30522)
    model.check(model.graph(FORMATS["int8"], None, task))


@pytest.mark.parametrize("fmt", ["fp32", pytest.param("int8", marks=pytest.mark.slow)])
def test_vectors_are_those_of_sentence_transformers(model: Model, fmt: str) -> None:
    """50 texts of all lengths are compared; `make parity-embeddings` compares all texts."""
    texts = make_texts(model.tokenizer(), [*LENGTHS, *LONG_LENGTHS])[::KEPT]
    with np.load(STORED) as stored:
        near = cosines(embed(model, fmt, texts), stored["vectors"])
    assert np.median(near) >= BOUNDS[fmt].median
    assert near.min() >= BOUNDS[fmt].minimum
