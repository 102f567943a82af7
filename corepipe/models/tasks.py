"""Tasks of a model beside generating: vectors of texts, classes, scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from corepipe.models.vision.preprocessing import ImageSize, Preprocessing
from corepipe.neuron.formats import Function
from corepipe.neuron.ops import PoolingMode


class Task(StrEnum):
    """The task that a server does with a model."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"
    SCORE = "score"


class ScoreActivation(StrEnum):
    """The function applied to scores before they are returned."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Dense:
    """A matrix [width, input width], named `name`, and a function (None: none) after the pooling."""

    name: str
    width: int
    bias: bool
    function: Function | None


@dataclass(frozen=True, slots=True)
class UnitLength:
    """A step after the pooling: divides a vector by its length."""


@dataclass(frozen=True, slots=True)
class TextVectors:
    """A head that computes a vector of each text: its rows are pooled, then go through the steps."""

    pooling: PoolingMode
    steps: tuple[Dense | UnitLength, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassScores:
    """A head for `labels` numbers of each text, or token; `taught`: the mean of two heads (DeiT's)."""

    labels: int
    per_token: bool = False
    taught: bool = False


Head = TextVectors | ClassScores
"""The Ops appended to a model's hidden states."""


@dataclass(frozen=True, slots=True)
class Images:
    """A model's image input: numbers [channels, height, width], as `rows` rows.

    preprocessing: the steps from an image's pixels to these numbers; None where the model's files do not say.
    """

    shape: tuple[int, int, int]
    rows: int
    preprocessing: Preprocessing | None

    @property
    def size(self) -> ImageSize:
        return ImageSize(*self.shape[1:])


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The work of a model in a server, and what its clients must know of it.

    labels: the names of classes or of the score, in the order of the numbers. activation: the function of the
    numbers, which the graph leaves out. max_tokens: the length at which texts are truncated, special tokens
    included. prompts: texts to put before a text, by name; default_prompt: the name of the one that is used
    by default (None: none). normalized: vectors have length 1. dimensions: numbers in a row of the result.
    matryoshka: the dimensions to which vectors may be truncated (empty: any; None: not allowed). per_token: a
    row a token, not one a text. pairs: two texts can be read as one. types: the graph reads token types.
    head: the graph's head (None: the one that generates). images: the image input (None: it reads texts).
    vocab_size: rows of the embedding, and of the logits where there are any; the tokenizer may have texts for
    fewer ids (0: it has all of them).
    """

    task: Task
    max_tokens: int
    dimensions: int
    labels: tuple[str, ...] = ()
    activation: ScoreActivation = ScoreActivation.IDENTITY
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    normalized: bool = False
    matryoshka: tuple[int, ...] | None = None
    per_token: bool = False
    pairs: bool = False
    types: bool = False
    head: Head | None = None
    images: Images | None = None
    vocab_size: int = 0
