"""Shared by tests on real weights: the default model, executors over its packed weights, greedy runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Submit, TokenLogprobs
from corepipe.errors import UserError
from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.models.registry import Model
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeCore, NativeExecutor, Weights
from corepipe.neuron.host.weights import PackedTensor, PackedWeights, packed_weights
from corepipe.neuron.step import StepInputs
from corepipe.serving.supervision.supervisor import ProcessClient
from tests.servers import PATIENCE_SECONDS

F32 = npt.NDArray[np.float32]
BLOCK_SIZE = 32
POSITIONS = 256
"""Longest sequence of these tests."""
BLOCKS = POSITIONS // BLOCK_SIZE
MAX_ROWS = 128


def default_model() -> Model:
    """SmolLM2-135M-Instruct; skips the test where it is neither in the cache nor to be fetched."""
    try:
        return registry.load(hub.resolve(hub.DEFAULT_MODEL))
    except UserError as error:
        pytest.skip(f"the default model cannot be had: {error}")


@dataclass(frozen=True)
class Bound:
    """A model in one format: its Graph and the packed weights that every placement of it shares."""

    model: Model
    graph: Graph
    weights: PackedWeights

    @classmethod
    def of(cls, model: Model, fmt: str, cache: Path | None = None) -> Bound:
        """With weights that are packed into `cache`, or into the user's."""
        graph = model.graph(FORMATS[fmt], POSITIONS)
        packed = packed_weights(graph, model.checkpoint, cache or hub.cache_dir() / "packed")
        return cls(model, graph, packed)

    def programs(self, placement: Placement) -> tuple[Program, ...]:
        return compile_graph(self.graph, placement)

    def executor(self, placement: Placement, pool: Any) -> NativeExecutor:
        """One replica."""
        return NativeExecutor(self.programs(placement), self.weights, BLOCKS, BLOCK_SIZE, MAX_ROWS, pool)


def chunk_inputs(tokens: Sequence[int], start: int, blocks: Sequence[int] = range(BLOCKS)) -> StepInputs:
    """Tokens at positions `start` ... of one sequence, all of whose logits are wanted."""
    rows = np.arange(len(tokens), dtype=np.int32)
    table = np.array([blocks], np.int32)
    starts = np.array([0, len(tokens)], np.int32)
    return StepInputs(np.array(tokens, np.int32), rows + np.int32(start), starts, table, rows)


def logits(executor: Any, inputs: StepInputs) -> F32:
    """Runs one batch without sampling: logits [R, vocab]."""
    found = executor.wait(executor.submit(inputs, None)).values
    assert found is not None
    return np.array(found)


def prompt_logits(executor: Any, prompt: Sequence[int], chunk: int) -> F32:
    """Logits of every row of a prompt that runs in chunks: [len(prompt), vocab]."""
    parts = [
        logits(executor, chunk_inputs(prompt[at : at + chunk], at)) for at in range(0, len(prompt), chunk)
    ]
    return np.concatenate(parts)


def greedy(executor: Any, prompt: Sequence[int], count: int, chunk: int = MAX_ROWS) -> tuple[list[int], F32]:
    """`count` greedy tokens, and the logits [count, vocab] that each was chosen from."""
    rows = [_last_logits(executor, prompt, chunk)]
    for position in range(len(prompt), len(prompt) + count - 1):
        token = int(rows[-1].argmax())
        rows.append(logits(executor, chunk_inputs([token], position))[0])
    found = np.stack(rows)
    return found.argmax(1).tolist(), found


def _last_logits(executor: Any, prompt: Sequence[int], chunk: int) -> F32:
    for at in range(0, len(prompt), chunk):
        inputs = chunk_inputs(prompt[at : at + chunk], at)
        last = replace(inputs, logit_rows=inputs.logit_rows[-1:])
        row: F32 = logits(executor, last)[0]
    return row


class OwnCopies:
    """A core's own, writable copies of the packed tensors it uses."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.tensors: dict[str, PackedTensor] = {}

    def __getitem__(self, name: str) -> PackedTensor:
        if name not in self.tensors:
            shared = self._weights[name]
            scale = None if shared.scale is None else shared.scale.copy()
            self.tensors[name] = replace(shared, data=_aligned_copy(shared.data), scale=scale)
        return self.tensors[name]


def _aligned_copy(data: npt.NDArray[np.uint8], alignment: int = 4096) -> npt.NDArray[np.uint8]:
    room = np.empty(data.size + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    copy = room[start : start + data.size]
    copy[:] = data
    return copy


class IsolatedCores:
    """A replica whose cores share nothing, and an executor that says when which of them runs."""

    def __init__(self, bound: Bound, placement: Placement, pool: Any) -> None:
        programs = bound.programs(placement)
        self.copies = [OwnCopies(bound.weights) for _ in programs]
        tensor = placement.tensor
        self.programs = programs
        self.cores = [
            NativeCore(p, own, BLOCKS, BLOCK_SIZE, MAX_ROWS, tensor)
            for p, own in zip(programs, self.copies, strict=True)
        ]
        end = programs[-1].ops[-1].out
        self.native = native().Executor(
            pool, [c.native for c in self.cores], self.cores[-1].buffer(end), end.width
        )

    def submit(self, inputs: StepInputs, _sampling: None) -> int:
        i = inputs
        return int(
            self.native.submit(i.tokens, i.positions, i.sequence_starts, i.block_tables, i.logit_rows, None)
        )

    def wait(self, ticket: int) -> Any:
        return _Values(self.native.wait(ticket)["values"])


@dataclass(frozen=True)
class _Values:
    values: F32


@dataclass
class Answer:
    """All news of one request, put together."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    cached: int = 0
    preemptions: int = 0


def answers(driver: Driver, submits: Sequence[Submit]) -> dict[str, Answer]:
    """Hands all requests to the driver and runs it until the last has ended."""
    found = {submit.id: Answer() for submit in submits}
    for submit in submits:
        driver.handle(submit)
    while driver.busy:
        for output in driver.turn():
            answer = found[output.id]
            assert answer.finish_reason is None, f"{output.id} ended twice"
            answer.tokens += output.tokens
            answer.logprobs += output.logprobs
            answer.finish_reason = output.finish_reason
            answer.cached = max(answer.cached, output.cached)
            answer.preemptions = max(answer.preemptions, output.preemptions)
    return found


def killed(
    config: EngineConfig, asked: Sequence[Submit], kills: int, apart: int = 60
) -> dict[str, list[Output]]:
    """Returns the outputs of a server's engine, which is killed after each `apart` tokens."""
    return asyncio.run(
        asyncio.wait_for(_killed(ProcessClient(config), asked, kills, apart), PATIENCE_SECONDS)
    )


async def _killed(
    client: ProcessClient, asked: Sequence[Submit], kills: int, apart: int
) -> dict[str, list[Output]]:
    await client.start()
    found: dict[str, list[Output]] = {submit.id: [] for submit in asked}
    heard = asyncio.Event()

    async def follow(submit: Submit) -> None:
        async for output in client.submit(submit):
            found[submit.id].append(output)
            heard.set()

    try:
        following = [asyncio.create_task(follow(submit)) for submit in asked]
        for number in range(kills):
            while sum(len(o.tokens) for outputs in found.values() for o in outputs) < apart * (number + 1):
                heard.clear()
                await heard.wait()
            assert client.engine_pid is not None
            os.kill(client.engine_pid, signal.SIGKILL)
            while client.restarts.get("killed", 0) == number or client.restarting:
                await asyncio.sleep(0.01)
        await asyncio.gather(*following)
        return found
    finally:
        await client.close()
