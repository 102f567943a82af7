from __future__ import annotations

from dataclasses import replace

import numpy as np

from corepipe.engine.batch.arrays import joining
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.batch.runner import Runner, SubmittedStep
from corepipe.engine.messages import Started
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.neuron.step import AdapterKind, AdapterRows, SamplingBatch, StepInputs, StepOutput
from corepipe.scheduler.request import Batch, Chunk, Request
from tests.engine.engine_support import scheduler_config
from tests.null_executor import NullExecutor

VOCAB = 1000


class Recorder(NullExecutor):
    """An executor that keeps its inputs; logprobs are the row's number, alternatives count from it."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.inputs: list[StepInputs] = []
        self.sampling: list[SamplingBatch] = []

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        assert sampling is not None
        self.inputs.append(inputs)
        self.sampling.append(sampling)
        return super().submit(inputs, sampling)

    def wait(self, ticket: int) -> StepOutput:
        out = super().wait(ticket)
        rows = np.arange(len(out.tokens), dtype=np.float32)
        width = out.top_ids.shape[1]
        ids = np.where(np.arange(width) < 2, np.arange(width), -1) + np.zeros_like(out.top_ids)
        values = -rows[:, None] - np.arange(width, dtype=np.float32)
        return StepOutput(out.tokens, -rows, ids.astype(np.int32), values, None, out.seconds, ranks=out.ranks)


def runner_with(*requests: SampledRequest) -> tuple[Runner, Recorder]:
    executor = Recorder()
    runner = Runner(executor, VOCAB, print)
    for request in requests:
        runner.add(request)
    return runner, executor


def batch_of(*chunks: Chunk) -> Batch:
    return Batch(0, chunks)


def request_with(
    name: str, prompt: list[int], blocks: list[int], sampling: TokenSampling | None = None, **fields: int
) -> SampledRequest:
    request = SampledRequest(name, prompt, 100, sampling=sampling or TokenSampling(), seed=0, **fields)
    request.block_ids = blocks
    return request


def test_a_mixed_batch_becomes_flat_arrays() -> None:
    prefill = request_with("a", [10, 11, 12, 13, 14], [3, 4])
    decode = request_with("b", [20, 21], [7])
    decode.append(22)
    partial = request_with("c", [30, 31, 32, 33], [9])
    runner, executor = runner_with(prefill, decode, partial)
    step = runner.submit(
        batch_of(
            Chunk(prefill, 2, 3, samples=True),
            Chunk(decode, 2, 1, samples=True),
            Chunk(partial, 0, 2, samples=False),
        )
    )
    inputs = executor.inputs[0]
    assert inputs.tokens.tolist() == [12, 13, 14, 22, 30, 31]
    assert inputs.positions.tolist() == [2, 3, 4, 2, 0, 1]
    assert inputs.sequence_starts.tolist() == [0, 3, 4, 6]
    assert inputs.block_tables.tolist() == [[3, 4], [7, 0], [9, 0]]
    assert inputs.logit_rows.tolist() == [2, 3]
    kinds = {name: getattr(inputs, name).dtype for name in inputs.__slots__}
    assert kinds.pop("patches") == np.float32  # of images
    assert set(kinds.values()) == {np.dtype(np.int32)}
    assert executor.sampling[0].position.tolist() == [5, 3]
    assert step.shape.rows == 6
    assert step.shape.kv_tokens == 5 + 3 + 2
    assert step.shape.attended == (3 + 4 + 5) + 3 + (1 + 2)
    tokens = runner.wait(step).tokens
    assert [[type(token) for token in drawn] for drawn in tokens] == [[int], [int], []]


def test_rows_have_the_adapter_of_their_request() -> None:
    """Rows of prompts, answers and drafts alike; without any adapter no slots are given."""
    first = request_with("a", [10, 11, 12], [3], adapter=4)
    second, third = request_with("b", [20], [7]), request_with("c", [30, 31], [9], adapter=0)
    runner, executor = runner_with(first, second, third)
    runner.submit(
        batch_of(
            Chunk(first, 0, 3, samples=True),
            Chunk(second, 0, 1, samples=True),
            Chunk(third, 1, 3, samples=True, drafts=(5, 6)),
        )
    )
    runner.submit(batch_of(Chunk(second, 0, 1, samples=True)))
    assert [inputs.adapters.tolist() for inputs in executor.inputs] == [[4, 4, 4, -1, 0, 0, 0], []]


def test_a_steps_shape_has_the_rows_of_each_adapter() -> None:
    wide, narrow = AdapterKind(16), AdapterKind(8, ("q_proj",))
    first, second = request_with("a", [10, 11, 12], [3], adapter=4), request_with("b", [20], [7])
    third, fourth = request_with("c", [30, 31], [9], adapter=0), request_with("d", [40, 41], [8], adapter=4)
    executor = Recorder()
    runner = Runner(executor, VOCAB, print, kinds={0: narrow, 4: wide})
    for request in (first, second, third, fourth):
        runner.add(request)
    step = runner.submit(
        batch_of(
            Chunk(first, 0, 2, samples=False),
            Chunk(second, 0, 1, samples=True),
            Chunk(third, 1, 3, samples=True, drafts=(5, 6)),
            Chunk(fourth, 1, 1, samples=True),
        )
    )
    assert step.shape.adapters == (AdapterRows(wide, (3, 1)), AdapterRows(narrow, (3, 3)))
    assert step.shape.counts == (7, 5)


def test_groups_of_layers_have_tables_one_after_the_other() -> None:
    """A request's table has rows of a block for each group; empty places are 0."""
    long = request_with("a", [1] * 5, [4, -1, 5, 6, 7, 8])
    short = request_with("b", [2], [2, 3])
    executor = Recorder()
    runner = Runner(executor, VOCAB, print, joining(replace(scheduler_config(), windows=(None, 8))))
    for request in (long, short):
        runner.add(request)
    runner.submit(batch_of(Chunk(long, 4, 1, samples=True), Chunk(short, 0, 1, samples=True)))
    tables = executor.inputs[0].block_tables
    assert tables.tolist() == [[4, 5, 7], [2, 0, 0], [0, 6, 8], [3, 0, 0]]
    assert tables.flags.c_contiguous
    runner.submit(batch_of(Chunk(short, 0, 1, samples=True)))
    assert executor.inputs[1].block_tables.tolist() == [[2], [3]]
    assert executor.inputs[1].block_tables.flags.c_contiguous


def test_logprobs_go_to_the_chunks_that_asked() -> None:
    asks = request_with("a", [1], [0], TokenSampling(logprobs=3))
    not_asks = request_with("b", [2], [1])
    alone = request_with("c", [3], [2], TokenSampling(logprobs=0))
    runner, _ = runner_with(not_asks, asks, alone)
    result = runner.wait(
        runner.submit(batch_of(*(Chunk(r, 0, 1, samples=True) for r in (not_asks, asks, alone))))
    )
    assert result.has_logprobs
    assert result.logprobs(0) == []
    (report,) = result.logprobs(1)
    assert (report.token, report.logprob) == (*result.tokens[1], -1.0)
    assert report.top == [(0, -1.0), (1, -2.0)]
    assert result.logprobs(2)[0].top == []


def test_a_request_is_announced_once() -> None:
    request, started = request_with("a", [1, 2], [0]), list[Started]()
    runner = Runner(Recorder(), VOCAB, started.extend)
    runner.add(request)
    for start in (0, 1):
        runner.submit(batch_of(Chunk(request, start, 1, samples=start == 1)))
    assert [each.id for each in started] == ["a"]


def prompt_chunks(request: Request, runner: Runner, sizes: list[int]) -> list[SubmittedStep]:
    start, steps = 0, []
    for size in sizes:
        samples = start + size == len(request.tokens)
        steps.append(runner.submit(batch_of(Chunk(request, start, size, samples=samples))))
        start += size
    return steps


def test_prompt_logprobs_ask_for_each_prompt_token_once() -> None:
    prompt = [10, 11, 12, 13, 14]
    request = request_with("a", prompt, [0], TokenSampling(prompt_logprobs=1), prompt_logits=True)
    runner, executor = runner_with(request)
    steps = prompt_chunks(request, runner, [2, 1, 2])
    assert [inputs.logit_rows.tolist() for inputs in executor.inputs] == [[0, 1], [0], [0, 1]]
    assert [s.chosen.tolist() for s in executor.sampling] == [[11, 12], [13], [14, -1]]
    assert [s.top_logprobs.tolist() for s in executor.sampling] == [[1, 1], [1], [1, -1]]
    results = [runner.wait(step) for step in steps]
    reports = [report.token for result in results for report in result.prompt_logprobs(0)]
    assert reports == prompt[1:]
    assert [len(result.tokens[0]) for result in results] == [0, 0, 1]
    assert results[2].logprobs(0) == []


def test_a_preempted_prompt_is_not_reported_twice() -> None:
    request = request_with("a", [10, 11, 12, 13], [0], TokenSampling(prompt_logprobs=0), prompt_logits=True)
    runner, executor = runner_with(request)
    prompt_chunks(request, runner, [3])
    request.num_preemptions += 1
    prompt_chunks(request, runner, [4])
    assert executor.sampling[0].chosen.tolist() == [11, 12, 13]
    assert executor.sampling[1].chosen.tolist() == [-1]
