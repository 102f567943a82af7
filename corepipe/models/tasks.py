"""What a model is asked to do, beside generating: vectors of texts, classes, scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from corepipe.models.vision.preprocessing import ImageSize, Preprocessing
from corepipe.neuron.formats import Function
from corepipe.neuron.ops import PoolingMode


class Task(StrEnum):
    """What a server does with a model."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"
    SCORE = "score"


class ScoreActivation(StrEnum):
    """What scores go through before they are told."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Dense:
    """A matrix [width, what comes in] and a function (None: none) after the pooling; `name`: its weights'."""

    name: str
    width: int
    bias: bool
    function: Function | None


@dataclass(frozen=True, slots=True)
class UnitLength:
    """Divides a vector by its length."""


@dataclass(frozen=True, slots=True)
class TextVectors:
    """A vector of each text: its rows pooled, then so many steps."""

    pooling: PoolingMode
    steps: tuple[Dense | UnitLength, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassScores:
    """So many numbers of each text, or of each of its tokens; `taught`: the mean of two heads (DeiT's)."""

    labels: int
    per_token: bool = False
    taught: bool = False


Head = TextVectors | ClassScores
"""What is put on a model's hidden states."""


@dataclass(frozen=True, slots=True)
class Images:
    """What a model reads of an image: numbers [channels, height, width], as so many rows.

    preprocessing: how they are made of an image's pixels; None where the model's files do not say.
    """

    shape: tuple[int, int, int]
    rows: int
    preprocessing: Preprocessing | None

    @property
    def size(self) -> ImageSize:
        return ImageSize(*self.shape[1:])


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a model does in a server, and what its clients must know of it.

    labels: of classify and score, in the order of the numbers.  activation: what the numbers go through,
    which the graph leaves out.  max_tokens: where texts are cut, special tokens included.  prompts: texts to
    put before a text, by name; default_prompt: the name of the one that is put where none is asked for (None:
    none).  normalized: vectors have length 1.  dimensions: numbers a row of what is computed.  matryoshka: to
    how many of them vectors may be cut (empty: to any; None: they may not).  per_token: a row a token, not
    one a text.  pairs: two texts can be read as one.  types: the graph reads token types.  head: what the
    graph has on top (None: what generates).  images: what it reads of them (None: it reads texts).
    vocab_size: rows of the embedding, and of the logits where there are any; the tokenizer may have texts
    for fewer ids (0: its ids are all that there are).
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
