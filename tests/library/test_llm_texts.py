"""The library without generation, over a stand-in for an encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from corepipe.answers.values import activated
from corepipe.engine.batch.encoding import Encoding
from corepipe.errors import UserError
from corepipe.library.llm import LLM
from corepipe.models.registry import load
from corepipe.models.tasks import ScoreActivation, Task, TaskInfo
from tests.engine.engine_support import BAD, encoder
from tests.library.test_llm import byte_tokenizer
from tests.tiny_encoders import POSITIONS, write_bert

EMBED = TaskInfo(Task.EMBED, 16, 3, matryoshka=(2,), normalized=True, prompts={"q": "? ", "none": ""})
CLASSIFY = TaskInfo(Task.CLASSIFY, 64, 3, ("a", "b", "c"), ScoreActivation.SOFTMAX)


def library(task: TaskInfo, encoding: Encoding | None = None) -> LLM:
    return LLM.of(encoder(encoding or Encoding()), byte_tokenizer(), task)


def ids(text: str) -> list[int]:
    return byte_tokenizer().encode(text)


def test_vectors_come_in_the_order_of_their_texts() -> None:
    texts = [chr(97 + n % 26) * (1 + 5 * n % 13) for n in range(60)]
    with library(EMBED) as llm:
        found = llm.embed(texts)
    for text, output in zip(texts, found, strict=True):
        assert output.embedding.tolist() == [sum(ids(text)), 0, len(text)]
        assert (output.prompt, output.prompt_token_ids) == (text, ids(text))
        assert output.device is not None


def test_one_text_or_its_tokens_are_a_list_of_one() -> None:
    with library(EMBED) as llm:
        (by_text,), (by_ids,) = llm.embed("abc"), llm.embed(ids("abc"))
    assert by_ids.prompt is None
    assert np.array_equal(by_text.embedding, by_ids.embedding)


def test_long_texts_are_cut_and_token_ids_are_not() -> None:
    with library(EMBED) as llm:
        (cut,) = llm.embed("x" * 40)
        (whole,) = llm.embed([1] * 40)
        with pytest.raises(UserError, match="65 tokens; at most 64 fit"):
            llm.embed([[1] * 65])
    assert (cut.embedding[2], whole.embedding[2]) == (16, 40)


def test_fewer_dimensions_have_length_1_again() -> None:
    with library(EMBED) as llm:
        (output,) = llm.embed("abc", dimensions=2)
        assert output.embedding.shape == (2,)
        assert np.linalg.norm(output.embedding) == pytest.approx(1)
        with pytest.raises(UserError, match="one of 2, not 1"):
            llm.embed("abc", dimensions=1)


def test_a_models_prompts_stand_before_texts() -> None:
    with library(EMBED) as llm:
        assert llm.embed("a", prompt_name="q")[0].prompt_token_ids == ids("? a")
        with pytest.raises(UserError, match=r"prompt_name: this model has no prompt x \(q, none\)"):
            llm.embed("a", prompt_name="x")


def test_classes_are_probabilities_unless_asked_otherwise() -> None:
    with library(CLASSIFY) as llm:
        (output,), (plain,) = llm.classify([[2, 1]]), llm.classify([[2, 1]], use_activation=False)
    assert plain.scores.tolist() == [3, 0, 2]
    assert output.scores.sum() == pytest.approx(1)
    assert (output.label, output.labels) == ("a", ("a", "b", "c"))


def test_each_token_may_have_its_class() -> None:
    task = TaskInfo(Task.CLASSIFY, 64, 3, ("a", "b", "c"), ScoreActivation.SOFTMAX, per_token=True)
    with library(task, Encoding(per_token=True)) as llm:
        (output,) = llm.classify([[1, 0, 0, 0]])
    assert output.scores.shape == (4, 3)
    assert output.label == ["a", "c", "c", "c"]


def test_vectors_are_compared_by_their_angle() -> None:
    with library(EMBED) as llm:
        same, other = llm.score("abc", ["abc", "a"])
        assert same.score == pytest.approx(1)
        assert other.score < same.score
        assert [one.score for one in llm.score(["abc", "x"], ["abc", "x"])] == pytest.approx([1, 1])
        with pytest.raises(UserError, match="2 first texts and 3 second ones"):
            llm.score(["a", "b"], ["a", "b", "c"])
        with pytest.raises(UserError, match="second must be a text"):
            llm.score("a", [1])  # type: ignore[list-item]


def test_a_cross_encoder_reads_both_as_one() -> None:
    task = TaskInfo(Task.SCORE, 16, 1, activation=ScoreActivation.SIGMOID, pairs=True)
    with library(task, Encoding(types=True)) as llm:
        outputs = llm.score("ab", ["c", "d" * 30])
    assert [output.prompt_token_ids for output in outputs] == [ids("abc"), ids("ab" + "d" * 14)]
    assert [output.score for output in outputs] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("task", "call", "message"),
    [
        (
            EMBED,
            lambda llm: llm.generate("a"),
            "generate: this model does not generate .task: embed.; ask it to",
        ),
        (EMBED, lambda llm: llm.chat([{"role": "user", "content": "a"}]), "does not chat"),
        (EMBED, lambda llm: llm.classify("a"), "classify: this model does not classify"),
        (CLASSIFY, lambda llm: llm.embed("a"), "ask it to classify"),
        (CLASSIFY, lambda llm: llm.score("a", "b"), "does not score"),
        (EMBED, lambda llm: llm.embed([[1, BAD]]), "overflowed"),
        (TaskInfo(Task.EMBED, 16, 3), lambda llm: llm.embed("a", dimensions=2), "not made to be cut"),
        (TaskInfo(Task.SCORE, 16, 1), lambda llm: llm.score("a", "b"), "reads no pairs"),
    ],
)
def test_what_it_does_not_do_is_refused(task: TaskInfo, call: Callable[[LLM], object], message: str) -> None:
    with library(task) as llm, pytest.raises(UserError, match=message):
        call(llm)


def test_a_library_waits_for_nobody() -> None:
    with pytest.raises(UserError, match="max_batch_delay"):
        LLM("nowhere", max_batch_delay=0.1)


def test_activations() -> None:
    rows = np.array([[0.0, 1.0, -1000.0]], np.float32)
    assert activated(rows, ScoreActivation.IDENTITY).tolist() == rows.tolist()
    assert activated(rows, ScoreActivation.SIGMOID)[0] == pytest.approx([0.5, 1 / (1 + np.exp(-1)), 0.0])
    assert activated(rows, ScoreActivation.SOFTMAX)[0] == pytest.approx(
        [1 / (1 + np.e), np.e / (1 + np.e), 0.0]
    )


def test_a_cross_encoder_with_one_token_type_reads_both_texts(tmp_path: Path) -> None:
    """RoBERTa's table of types has one row; a second text has no type of its own."""
    folder = write_bert(
        tmp_path,
        "LABEL_0",
        name="RobertaForSequenceClassification",
        model_type="roberta",
        type_vocab_size=1,
        pad_token_id=1,
        max_position_embeddings=POSITIONS + 2,
    )
    with LLM(str(folder), format="fp32") as llm:
        same, other = llm.score("a cat", ["a cat", "a dog"])
    assert same.score != other.score


def test_texts_are_lowered_where_a_directory_says_so(tmp_path: Path) -> None:
    write_bert(tmp_path)
    backend = Backend(models.WordLevel({"[UNK]": 0, "hello": 1, "HELLO": 2}, unk_token="[UNK]"))
    backend.save(str(tmp_path / "tokenizer.json"))
    for lowered in (False, True):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": lowered}))
        assert load(tmp_path).tokenizer().encode("HELLO") == [1 if lowered else 2]
