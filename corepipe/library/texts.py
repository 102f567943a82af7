"""Results of the library without generation: vectors, classes and scores of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.answers.values import F32, activated, normalized
from corepipe.engine.messages import DeviceTimes, Output, Submit
from corepipe.errors import UserError, shown
from corepipe.library.images import Pictures
from corepipe.library.prompts import Prompt, listed, several
from corepipe.models.tasks import ScoreActivation, Task, TaskInfo
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.scheduler.request import FinishReason

METHODS = {
    Task.GENERATE: "generate or chat",
    Task.EMBED: "embed or score",
    Task.CLASSIFY: "classify",
    Task.SCORE: "score",
}
"""The methods of an LLM for each task."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A text's vector [dimensions].  device: the times that the emulated device would have taken."""

    prompt: str | None
    prompt_token_ids: list[int]
    embedding: F32
    device: DeviceTimes | None


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """A text's classes: a score of each of `labels`, [labels], and the label of the largest; of a model that
    classifies tokens [tokens, labels], and a label for each token.  The prompt of an image is its path, if it
    had one, and the token ids are zeros, one for each of its rows."""

    prompt: str | None
    prompt_token_ids: list[int]
    scores: F32
    labels: tuple[str, ...]
    label: str | list[str]
    device: DeviceTimes | None


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """The score of two texts, the larger the better they match."""

    score: float
    prompt_token_ids: list[int]
    device: DeviceTimes | None


class EncodedText:
    """A text in the engine, and its values once they have come."""

    def __init__(self, prompt: str | None, submit: Submit) -> None:
        self.prompt = prompt
        self.submit = submit
        self.device: DeviceTimes | None = None
        self._values: F32 | None = None

    @property
    def ended(self) -> bool:
        return self._values is not None

    def take(self, output: Output) -> None:
        """Takes its only Output.  Raises UserError for a refusal."""
        if output.finish_reason == FinishReason.ERROR:
            raise UserError(output.error or "the engine refused the text")
        self.device = output.device
        self._values = np.frombuffer(output.values, "<f4").reshape(output.rows, -1)

    @property
    def values(self) -> F32:
        """The values of the text [rows, width]."""
        assert self._values is not None
        return self._values


class Texts:
    """Makes requests of texts for a task, and results of their values.  `longest`: the tokens at which a text
    is cut, as sentence-transformers does; token ids are not cut."""

    def __init__(self, task: TaskInfo, tokenizer: Tokenizer, longest: int) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._most = min(task.max_tokens, longest)
        self._numbers = 0
        self._pictures = None if task.images is None else Pictures(task.images)

    @property
    def task(self) -> Task:
        """The task of the model."""
        return self._task.task

    def require(self, method: str, *tasks: Task) -> None:
        """Raises UserError unless the model does one of these tasks."""
        task = self._task.task
        if task not in tasks:
            raise UserError(
                f"{method}: this model does not {method} (task: {task}); ask it to {METHODS[task]}", "task"
            )

    def read(self, prompts: Prompt | Sequence[Prompt], prompt_name: str | None = None) -> list[EncodedText]:
        """Makes requests of texts.  Raises UserError for other values, and for an unknown prompt name."""
        before = self._before(prompt_name)
        return [self._text(prompt, before) for prompt in listed(prompts)]

    def read_classified(self, given: object) -> list[EncodedText]:
        """Makes requests of a classifier's texts or images.  Raises UserError for what is neither."""
        if self._pictures is None:
            return self.read(given)  # type: ignore[arg-type]  # it reports what is wrong with it
        ids = [0] * self._pictures.rows
        return [
            EncodedText(path, self._submit(ids, image=pixels)) for path, pixels in self._pictures.read(given)
        ]

    def close(self) -> None:
        """Ends the process that decodes images."""
        if self._pictures is not None:
            self._pictures.close()

    def read_pairs(self, first: str | Sequence[str], second: str | Sequence[str]) -> list[EncodedText]:
        """Makes requests of two texts each.  Raises UserError for a model that reads no pairs."""
        if not self._task.pairs:
            raise UserError("score: this model reads no pairs of texts", "task")
        firsts, seconds = as_many(first, second)
        return [self._pair(one, other) for one, other in zip(firsts, seconds, strict=True)]

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises UserError where vectors cannot be cut to so many dimensions."""
        task, known = self._task, self._task.matryoshka
        if dimensions is None or dimensions == task.dimensions:
            return
        if known is None:
            raise UserError(
                f"dimensions: this model's vectors have {task.dimensions}, and are not made to be cut",
                "dimensions",
            )
        if not 1 <= dimensions <= task.dimensions or (known and dimensions not in known):
            allowed = ", ".join(map(str, known)) or f"1 to {task.dimensions}"
            raise UserError(f"dimensions must be one of {allowed}, not {dimensions}", "dimensions")

    def embedding(self, text: EncodedText, dimensions: int | None) -> EmbeddingOutput:
        """Makes the result of an encoded text: its vector, cut to `dimensions`."""
        vector = text.values[0]
        if dimensions is not None and dimensions < len(vector):
            vector = (
                normalized(vector[None, :dimensions])[0] if self._task.normalized else vector[:dimensions]
            )
        return EmbeddingOutput(text.prompt, text.submit.prompt, vector, text.device)

    def classification(self, text: EncodedText, *, use_activation: bool) -> ClassificationOutput:
        """Makes the result of an encoded text: its classes."""
        task = self._task
        scores = activated(text.values, task.activation if use_activation else ScoreActivation.IDENTITY)
        labels = [task.labels[at] for at in scores.argmax(axis=1).tolist()]
        ids = text.submit.prompt
        if task.per_token:
            return ClassificationOutput(text.prompt, ids, scores, task.labels, labels, text.device)
        return ClassificationOutput(text.prompt, ids, scores[0], task.labels, labels[0], text.device)

    def score(self, pair: EncodedText) -> ScoreOutput:
        """Makes the result of an encoded pair: its score."""
        found = float(activated(pair.values, self._task.activation)[0, 0])
        return ScoreOutput(found, pair.submit.prompt, pair.device)

    def similarities(
        self, firsts: Sequence[EncodedText], seconds: Sequence[EncodedText]
    ) -> list[ScoreOutput]:
        """Returns the cosine of each pair of vectors, with the second text's times on the device."""
        one, other = (
            normalized(np.concatenate([text.values for text in side])) for side in (firsts, seconds)
        )
        cosines = (one.astype(np.float64) * other).sum(axis=1).tolist()
        both = zip(firsts, seconds, cosines, strict=True)
        return [ScoreOutput(found, a.submit.prompt + b.submit.prompt, b.device) for a, b, found in both]

    def _before(self, name: str | None) -> str:
        name = self._task.default_prompt if name is None else name
        if name is not None and name not in self._task.prompts:
            known = ", ".join(self._task.prompts) or "none"
            raise UserError(f"prompt_name: this model has no prompt {shown(name)} ({known})", "prompt_name")
        return "" if name is None else self._task.prompts[name]

    def _text(self, prompt: Prompt, before: str) -> EncodedText:
        if not isinstance(prompt, str):
            return EncodedText(None, self._submit([int(token) for token in prompt]))
        ids = self._tokenizer.encode(before + prompt)
        return EncodedText(prompt, self._submit(self._tokenizer.cut(ids, self._most, "right", framed=True)))

    def _pair(self, first: str, second: str) -> EncodedText:
        ids, begins = self._tokenizer.pair(first, second, most=self._most)
        return EncodedText(None, self._submit(ids, begins))

    def _submit(self, ids: list[int], second: int = 0, image: bytes = b"") -> Submit:
        number, self._numbers = self._numbers, self._numbers + 1
        return Submit(f"text-{number}", ids, 0, second=second, image=image)


def as_many(first: object, second: object) -> tuple[list[str], list[str]]:
    """Pairs one text with each of several, or as many with as many.  Raises UserError for other numbers."""
    firsts, seconds = _strings(first, "first"), _strings(second, "second")
    if not seconds or len(firsts) not in (1, len(seconds)):
        raise UserError(
            f"score: {len(firsts)} first texts and {len(seconds)} second ones: give one and any number, or "
            "as many of both",
            "second",
        )
    return (firsts * len(seconds) if len(firsts) == 1 else firsts), seconds


def _strings(given: object, field: str) -> list[str]:
    texts: Iterable[object] = [given] if isinstance(given, str) else given if several(given) else [None]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) != len(list(texts)):
        raise UserError(f"{field} must be a text, or a list of texts, not {shown(repr(given))}", field)
    return found
