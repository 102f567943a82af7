"""Chooses the task of a checkpoint from its configuration files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType

from corepipe.errors import UserError, shown
from corepipe.models.fields import MAX_POSITIONS, MAX_VOCAB, Fields, read_json
from corepipe.models.sentence_transformers import SentenceModel, read_activation
from corepipe.models.tasks import (
    ClassScores,
    Dense,
    Head,
    Images,
    ScoreActivation,
    Task,
    TaskInfo,
    TextVectors,
    UnitLength,
)
from corepipe.models.vision.preprocessing import COLOURS, read_preprocessing
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import PoolingMode
from corepipe.neuron.values import InputKind, image_shape

SEQUENCE, TOKENS, IMAGE = "ForSequenceClassification", "ForTokenClassification", "ForImageClassification"
TAUGHT = f"{IMAGE}WithTeacher"
MAX_LABEL = 1 << 10
MAX_IMAGE = 1 << 23
"""The most numbers of an image: 1,672 pixels a side, and half a frame of the messages to the engine."""

PROBLEMS: Mapping[str, ScoreActivation] = MappingProxyType(
    {
        "multi_label_classification": ScoreActivation.SIGMOID,
        "regression": ScoreActivation.IDENTITY,
        "single_label_classification": ScoreActivation.SOFTMAX,
    }
)
"""The activation of a classifier, by a config's problem_type."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The facts that decide the task: a model's fields, its directory (None: it has none), its graph without
    a head, the width of its hidden states, whether it is an encoder, and whether its family has heads of
    classes.

    sentence: the settings of sentence-transformers' files.
    """

    fields: Fields
    folder: Path | None
    graph: Graph
    width: int
    encoder: bool
    classes: bool
    sentence: SentenceModel

    @property
    def architecture(self) -> str:
        """The class that saved the checkpoint; empty where the config does not name it."""
        listed = self.fields.values.get("architectures")
        first = listed[0] if isinstance(listed, list) and listed else ""
        return first if isinstance(first, str) else ""

    @property
    def classifies(self) -> bool:
        """Tells whether the checkpoint has a head of classes."""
        return self.architecture.endswith((SEQUENCE, TOKENS, IMAGE, TAUGHT))

    @property
    def reads_text(self) -> bool:
        return any(given.kind is InputKind.TOKENS for given in self.graph.inputs)


def choose(asked: str, subject: Subject) -> TaskInfo:
    """Describes what a model does for a task by name, or for `auto`. Raises UserError if it cannot."""
    task = _auto(subject) if asked == "auto" else _named(asked)
    return replace(_described(task, subject), vocab_size=subject.graph.vocab_size)


def _described(task: Task, subject: Subject) -> TaskInfo:
    if task is Task.GENERATE:
        return _generate(subject)
    if task is Task.EMBED:
        return _embed(subject)
    return _classify(task, subject)


def _named(asked: str) -> Task:
    if asked not in list(Task):
        raise UserError(f"task: {shown(asked)} is not known (known: auto, {', '.join(Task)})", "task")
    return Task(asked)


def _auto(subject: Subject) -> Task:
    if subject.sentence.head is not None:
        return Task.EMBED
    if subject.classifies:
        single = subject.architecture.endswith(SEQUENCE) and len(_labels(subject.fields)) == 1
        return Task.SCORE if single else Task.CLASSIFY
    return Task.GENERATE if subject.graph.is_decoder else Task.EMBED


def _refused(subject: Subject, task: Task, why: str) -> UserError:
    return UserError(f"task: {shown(subject.graph.name)} cannot {task}: {why}", "task")


def _generate(subject: Subject) -> TaskInfo:
    if not subject.graph.is_decoder:
        raise _refused(subject, Task.GENERATE, "it is not a decoder")
    return TaskInfo(Task.GENERATE, subject.graph.max_positions, subject.graph.vocab_size)


def _embed(subject: Subject) -> TaskInfo:
    if not subject.reads_text:
        raise _refused(subject, Task.EMBED, "it reads images")
    if not (subject.encoder or subject.graph.is_decoder):
        raise _refused(subject, Task.EMBED, "it is neither an encoder nor a decoder alone")
    sentence, causal = subject.sentence, subject.graph.causal
    head = sentence.head or TextVectors(PoolingMode.LAST if causal else PoolingMode.MEAN)
    if causal and head.pooling is not PoolingMode.LAST:
        raise _refused(subject, Task.EMBED, f"{head.pooling} pooling of a decoder is not supported")
    widths = [step.width for step in head.steps if isinstance(step, Dense)]
    width = widths[-1] if widths else subject.width
    return TaskInfo(
        task=Task.EMBED,
        max_tokens=_max_tokens(subject),
        dimensions=width,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        normalized=any(isinstance(step, UnitLength) for step in head.steps[-1:]),
        matryoshka=_matryoshka(subject.fields, width),
        types=_types(subject),
        head=head,
    )


def _classify(task: Task, subject: Subject) -> TaskInfo:
    if not subject.classifies:
        said = subject.architecture or "its config names no class"
        raise _refused(subject, task, f"it has no head of classes ({shown(said)})")
    if not subject.classes:
        raise _refused(subject, task, f"{shown(subject.architecture)} is not supported")
    labels = _labels(subject.fields)
    per_token = subject.architecture.endswith(TOKENS)
    if task is Task.SCORE and (len(labels) != 1 or not subject.architecture.endswith(SEQUENCE)):
        raise _refused(subject, task, f"a score is one number a text, this gives {len(labels)} classes")
    head: Head = ClassScores(len(labels), per_token, taught=subject.architecture.endswith(TAUGHT))
    return TaskInfo(
        task=task,
        max_tokens=_max_tokens(subject),
        dimensions=len(labels),
        labels=labels,
        activation=ScoreActivation.SOFTMAX if per_token else _activation(task, subject, len(labels)),
        prompts=subject.sentence.prompts,
        default_prompt=subject.sentence.default_prompt,
        per_token=per_token,
        pairs=subject.reads_text and not per_token,
        types=_types(subject),
        head=head,
        images=_images(subject, task),
    )


def _images(subject: Subject, task: Task) -> Images | None:
    """Raises UserError for images that are too large, and for preprocessing that is not implemented."""
    given = next((one for one in subject.graph.inputs if one.kind is InputKind.PATCHES), None)
    if given is None:
        return None
    rows = subject.graph.max_positions
    shape = image_shape(given, rows)
    if prod(shape) > MAX_IMAGE:
        raise _refused(subject, task, f"its images have {prod(shape)} numbers, more than {MAX_IMAGE}")
    folder = subject.folder if shape[0] == COLOURS else None  # images of other channels are given as tensors
    found = None if folder is None else read_preprocessing(folder, subject.architecture, shape[1])
    return Images(shape, rows, found)


def _types(subject: Subject) -> bool:
    return any(given.kind is InputKind.TYPES for given in subject.graph.inputs)


def _max_tokens(subject: Subject) -> int:
    """Returns the limit of sentence-transformers' options, else the tokenizer's; at most the positions."""
    stated = subject.sentence.max_tokens
    file = None if subject.folder is None else subject.folder / "tokenizer_config.json"
    if stated is None and file is not None and file.is_file():
        value = read_json(file).get("model_max_length")
        # transformers writes 1e30, an integer, where a tokenizer does not say.
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_POSITIONS:
            stated = value
    most = subject.graph.max_positions
    return most if stated is None else min(stated, most)


def _labels(fields: Fields) -> tuple[str, ...]:
    """Returns the names of the classes; transformers' default names where the config has none."""
    section = fields.section("id2label")
    if section is None:
        return tuple(f"LABEL_{n}" for n in range(fields.integer("num_labels", MAX_VOCAB, default=2)))
    if not 1 <= len(section.values) <= MAX_VOCAB:
        raise fields.error("id2label", "must name the classes")
    names = tuple(section.text(str(number)) for number in range(len(section.values)))
    if long := next((name for name in names if len(name) > MAX_LABEL), None):
        raise fields.error("id2label", f"has a name of {len(long)} characters, more than {MAX_LABEL}")
    return names


def _activation(task: Task, subject: Subject, labels: int) -> ScoreActivation:
    """Returns the activation that sentence-transformers' files name; else a sigmoid for one label, and for
    several the one of the config's problem_type."""
    fields = subject.fields
    section = fields.section("sentence_transformers") or Fields(fields.path, {})
    named = (
        subject.sentence.activation
        or read_activation(section, "activation_fn")
        or read_activation(fields, "sbert_ce_default_activation_function")
    )
    if named is not None:
        return named
    if task is Task.SCORE:
        return ScoreActivation.SIGMOID
    default = ScoreActivation.SIGMOID if labels == 1 else ScoreActivation.SOFTMAX
    problem = fields.text("problem_type", "")
    if problem and problem not in PROBLEMS:
        raise fields.error(
            "problem_type", f"{shown(problem)} is not supported (known: {', '.join(PROBLEMS)})"
        )
    return default if problem in ("", "single_label_classification") else PROBLEMS[problem]


def _matryoshka(fields: Fields, width: int) -> tuple[int, ...] | None:
    """Returns the numbers of dimensions to which vectors may be truncated."""
    if fields.has("matryoshka_dimensions"):
        sizes = fields.items("matryoshka_dimensions")
        if not sizes or not all(type(size) is int and 1 <= size <= width for size in sizes):
            raise fields.error("matryoshka_dimensions", f"must be a list of integers from 1 to {width}")
        return tuple(sizes)
    return () if fields.flag("is_matryoshka") else None
