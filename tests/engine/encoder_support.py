"""Scripted encoders, whose values follow from the token ids of a prompt."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from corepipe.engine.messages import Output, Submit
from corepipe.models.tasks import ScoreActivation, Task, TaskInfo
from corepipe.models.text.tokenizer import Tokenizer
from tests.serving.http_support import DEVICE, Script, Step

F32 = npt.NDArray[np.float32]
MOST = 64
WIDTH = 16
LABELS = ("no", "maybe", "yes")
PROMPTS = {"query": "find the ", "document": "a "}

EMBED = TaskInfo(Task.EMBED, MOST, WIDTH, normalized=True, types=True)
MATRYOSHKA = TaskInfo(
    Task.EMBED, MOST, WIDTH, normalized=True, matryoshka=(4, 8), prompts=PROMPTS, default_prompt="document"
)
ANY_LENGTH = TaskInfo(Task.EMBED, MOST, WIDTH, normalized=True, matryoshka=())
RAW = TaskInfo(Task.EMBED, MOST, WIDTH)
CLASSIFY = TaskInfo(Task.CLASSIFY, MOST, 3, labels=LABELS, activation=ScoreActivation.SOFTMAX)
TAG = TaskInfo(Task.CLASSIFY, MOST, 3, labels=LABELS, activation=ScoreActivation.SOFTMAX, per_token=True)
SCORE = TaskInfo(
    Task.SCORE, MOST, 1, labels=("LABEL_0",), activation=ScoreActivation.SIGMOID, pairs=True, types=True
)


@functools.cache
def bert() -> Tokenizer:
    """WordPiece of some words and all letters, framed as BERT frames texts and pairs."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(one) for one in range(ord("a"), ord("z") + 1)]
    words = ["the", "cat", "dog", "find", "sat"]
    pieces = [*special, *words, *letters, *(f"##{one}" for one in letters)]
    vocab = {text: at for at, text in enumerate(pieces)}
    backend = Backend(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.add_special_tokens(special)
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return Tokenizer(backend, {}, None)


def computed(ids: Sequence[int], second: int, task: TaskInfo) -> F32:
    """Returns the values that the model computes of a prompt [rows, width], before any activation."""
    places = np.arange(1, task.dimensions + 1)
    rows = list(ids) if task.per_token else [sum(at * one for at, one in enumerate(ids, 3)) + 7 * second]
    values = np.sin(np.outer(rows, places) / 5)
    if task.normalized:
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
    return values.astype(np.float32)


def computing(task: TaskInfo) -> Script:
    """Returns the script of an engine that computes these values."""

    def script(submit: Submit) -> list[Step]:
        assert submit.max_tokens == 0
        values = computed(submit.prompt, submit.second, task)
        told = Output(
            submit.id, finish_reason="stop", device=DEVICE, values=values.tobytes(), rows=len(values)
        )
        return [told]

    return script
