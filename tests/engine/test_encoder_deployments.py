"""Encoders from their files to values, on the kernels: placements, batches, tasks, another model's times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Ready
from corepipe.errors import UserError
from corepipe.library.llm import LLM
from tests.engine.engine_support import run, submit
from tests.servers import TINY
from tests.tiny_encoders import POSITIONS, write_bert

F32 = npt.NDArray[np.float32]
ONE = {"pipeline": 1, "tensor": 1, "data": 1}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def texts(vocab: int = 60, count: int = 40, longest: int = POSITIONS) -> Iterator[tuple[list[int], int]]:
    """Returns token ids, and the index at which the second text begins."""
    rng = random.Random(16)
    for number in range(count):
        length = longest if number == 7 else rng.randint(1, longest)
        yield [rng.randrange(vocab) for _ in range(length)], rng.choice([0, rng.randint(0, length)])


def computed(model: Path, cache: Path, **options: object) -> tuple[F32, Ready]:
    """Returns the values of all texts [texts, width], and the outputs of the engine."""
    fixed = {"model": str(model), "cache_dir": cache, "threads": 1, "format": "fp32", "clock": "virtual"}
    deployment = assemble(validated(EngineConfig, {**fixed, **ONE, **options}), lambda _what, _done: None)
    driver = Driver(deployment)
    for number, (ids, second) in enumerate(texts()):
        driver.handle(submit(str(number), ids, 0, second=second))
    told = {output.id: output for output in run(driver)}
    driver.close()
    assert {output.finish_reason for output in told.values()} == {"stop"}
    return np.stack([np.frombuffer(told[str(n)].values, "<f4") for n in range(len(told))]), deployment.ready


@pytest.fixture(scope="module")
def alone(bert: Path, cache: Path) -> F32:
    """Computes one text a batch, on one core."""
    values, ready = computed(bert, cache, max_num_seqs=1)
    assert (ready.task, ready.blocks, ready.max_model_len) == ("embed", 0, POSITIONS)
    return values


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16384, "max_num_seqs": 64},
        {"pipeline": 2, "max_num_seqs": 3},
        {"data": 2, "max_num_seqs": 5},
        {"timing_model": "bert-base"},
        {"profile": "traced", "max_batch_delay": 0.01},
    ],
    ids=str,
)
def test_bits_do_not_depend_on_batches_and_placements(
    bert: Path, cache: Path, alone: F32, options: dict[str, object]
) -> None:
    values, _ = computed(bert, cache, **options)
    assert np.array_equal(values, alone)


def test_tensor_parallel_values_are_close(bert: Path, cache: Path, alone: F32) -> None:
    values, _ = computed(bert, cache, tensor=2)
    assert np.allclose(values, alone, atol=1e-5)


def test_another_encoders_times(bert: Path, cache: Path) -> None:
    _, ready = computed(bert, cache, timing_model="bert-base", clock="device", time_scale=0.01)
    assert ready.placement["timing_model"] == "bert-base"
    assert ready.placement["buckets"]["lengths"] == [128, 256, 512]
    assert ready.max_model_len == POSITIONS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timing_model": "llama-3.2-1b"}, "it is no encoder of texts"),
        ({"task": "generate"}, "cannot generate: it is not a decoder"),
        ({"task": "classify"}, "cannot classify"),
        ({"max_model_len": 129}, "128 positions, 129"),
    ],
)
def test_what_cannot_be(bert: Path, cache: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        computed(bert, cache, **options)


def test_what_generates_waits_for_nobody(cache: Path) -> None:
    with pytest.raises(UserError, match="--max-batch-delay: llama3 generates"):
        computed(TINY, cache, max_batch_delay=0.1)


def test_a_decoder_embeds_in_chunks(cache: Path) -> None:
    """The vector of its last token is the same, however its prompt was cut and whatever was cached."""
    whole, ready = computed(TINY, cache, task="embed", max_num_seqs=1, prefix_cache=False)
    cut, _ = computed(TINY, cache, task="embed", max_num_batched_tokens=16)
    assert (ready.task, ready.blocks > 0) == ("embed", True)
    assert np.array_equal(whole, cut)


def test_the_library_classifies_and_scores(tmp_path: Path, cache: Path) -> None:
    labels = ("no", "maybe", "yes")
    three = write_bert(tmp_path / "three", *labels, name="BertForSequenceClassification")
    one = write_bert(tmp_path / "one", "LABEL_0", name="BertForSequenceClassification")
    with LLM(three, format="fp32", cache_dir=cache, threads=1) as llm:
        (classes,) = llm.classify("the cat sat")
        assert classes.labels == labels
        assert classes.label in labels
        assert classes.scores.sum() == pytest.approx(1)
    with LLM(one, format="fp32", cache_dir=cache, threads=1) as llm:
        near, far = llm.score("the cat sat", ["find the dog", "a b c " * 100])
        assert 0 < near.score < 1
        assert len(far.prompt_token_ids) == POSITIONS
        with pytest.raises(UserError, match="does not embed"):
            llm.embed("a")
