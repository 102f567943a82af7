"""Runs the native executor on the inputs of an encoder: several texts in a batch, as a server does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.models.registry import Model
from corepipe.models.tasks import TaskInfo
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import patches_of
from corepipe.neuron.step import StepInputs
from corepipe.neuron.values import TOKENS, InputKind
from tests.parity.executors import blocks_for, executor, values_of

MAX_ROWS = 1024
NO_TYPES = np.empty(0, np.int32)
NO_PATCHES = np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Text:
    """Token ids; from index `second` on they belong to the second text (0: there is one)."""

    ids: Sequence[int]
    second: int = 0

    @property
    def types(self) -> list[int]:
        return [int(0 < self.second <= at) for at in range(len(self.ids))]


@dataclass(frozen=True)
class Picture:
    """Pixels [channels, height, width], and the number of rows as which a model reads them."""

    pixels: np.ndarray
    rows: int

    @property
    def ids(self) -> Sequence[int]:
        """Placeholders of tokens, one a row: an image has no tokens, and its rows are counted by these."""
        return [0] * self.rows

    @property
    def types(self) -> list[int]:
        return self.ids


class Encoder:
    """A model on one core, or on a `placement`'s; `task` None for the family's own output."""

    def __init__(
        self,
        model: Model,
        fmt: str,
        task: TaskInfo | None,
        kind: str = "native",
        placement: Placement | None = None,
    ) -> None:
        self.graph = model.graph(FORMATS[fmt], None, task)
        place = placement or Placement()
        self._executor = executor(kind, model, self.graph, place, MAX_ROWS, MAX_ROWS)

    def close(self) -> None:
        self._executor.close()

    def values(self, texts: Sequence[Text | Picture]) -> list[np.ndarray]:
        """Returns the rows of each text: one, or one a token; of each image one."""
        found: list[np.ndarray] = []
        for batch in _batches(texts):
            values = values_of(self._executor, step_of(batch, self.graph))
            by_token = self.graph.outputs[0].value.rows == TOKENS
            ends = np.cumsum([len(text.ids) if by_token else 1 for text in batch])
            found += np.split(values, ends[:-1])
        return found


def step_of(texts: Sequence[Text | Picture], graph: Graph) -> StepInputs:
    """Returns one batch of whole texts; the first row of each is an output, and a decoder's last."""
    lengths = [len(text.ids) for text in texts]
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    reads_types = any(given.kind is InputKind.TYPES for given in graph.inputs)
    blocks = blocks_for(max(lengths)) if graph.causal else 0
    pictures = [text for text in texts if isinstance(text, Picture)]
    read = [patches_of(picture.pixels, graph.inputs[0]) for picture in pictures]
    return StepInputs(
        tokens=np.concatenate([text.ids for text in texts]).astype(np.int32),
        positions=np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        sequence_starts=starts,
        block_tables=np.arange(len(texts) * blocks, dtype=np.int32).reshape(len(texts), blocks),
        logit_rows=starts[1:] - 1 if graph.causal else starts[:-1],
        types=np.concatenate([text.types for text in texts]).astype(np.int32) if reads_types else NO_TYPES,
        patches=np.concatenate(read) if read else NO_PATCHES,
    )


def _batches(texts: Sequence[Text | Picture]) -> Iterator[list[Text | Picture]]:
    batch: list[Text | Picture] = []
    for text in texts:
        if batch and sum(len(one.ids) for one in batch) + len(text.ids) > MAX_ROWS:
            yield batch
            batch = []
        batch.append(text)
    yield batch
