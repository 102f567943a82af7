"""Runs an executor on the inputs of a reference: greedy choices, logits, perplexity."""

from __future__ import annotations

import numpy as np

from corepipe.models.registry import Model
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import StepInputs
from tests.parity.executors import blocks_for, executor, values_of

MAX_ROWS = 128


class Evaluator:
    """One sequence at a time on one core, of an executor of `executors.KINDS`; `capacity` is the longest
    sequence."""

    def __init__(self, model: Model, fmt: str, capacity: int, kind: str = "native") -> None:
        graph = model.graph(FORMATS[fmt])
        self._executor = executor(kind, model, graph, Placement(), capacity, MAX_ROWS)
        self._table = np.arange(blocks_for(capacity), dtype=np.int32)[None]

    def close(self) -> None:
        self._executor.close()

    def logits(self, tokens: list[int], start: int = 0) -> np.ndarray:
        """Returns logits [len(tokens), vocab] of tokens at positions `start` ...; the positions before are in
        the cache."""
        parts = [self._step(tokens[at : at + MAX_ROWS], start + at) for at in range(0, len(tokens), MAX_ROWS)]
        return np.concatenate(parts)

    def _step(self, tokens: list[int], start: int) -> np.ndarray:
        rows = np.arange(len(tokens), dtype=np.int32)
        starts = np.array([0, len(tokens)], np.int32)
        inputs = StepInputs(np.array(tokens, np.int32), rows + np.int32(start), starts, self._table, rows)
        return values_of(self._executor, inputs)

    def agreement(self, prompt: list[int], answer: list[int]) -> int:
        """Returns how many tokens of `answer` are the greedy choice after the ones before; one token a
        step."""
        choice = int(self.logits(prompt)[-1].argmax())
        equal = int(choice == answer[0])
        for i, token in enumerate(answer[:-1]):
            choice = int(self.logits([token], len(prompt) + i)[0].argmax())
            equal += choice == answer[i + 1]
        return equal

    def perplexity(self, windows: list[list[int]]) -> float:
        """Returns exp of the mean loss of each token after a window's first."""
        losses = [self._loss(window) for window in windows]
        return float(np.exp(np.mean(losses)))

    def _loss(self, window: list[int]) -> float:
        logits = self.logits(window[:-1]).astype(np.float64)
        top = logits.max(-1, keepdims=True)
        logsumexp = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
        chosen = logits[np.arange(len(logits)), window[1:]]
        return float(np.mean(logsumexp - chosen))
