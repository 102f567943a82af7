"""Requests that generate nothing, from a Submit to their values."""

from __future__ import annotations

import numpy as np
import pytest

from corepipe.engine.batch.encoding import Encoding, EncodingRunner, values_of
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Started, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.models.registry import architecture
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import AdapterKind, AdapterRows
from corepipe.scheduler.request import Batch, Chunk
from tests.engine.engine_support import BAD, SummingExecutor, by_request, encoder, floats, run, submit

LAST_TOKEN = Encoding(causal=True, keeps_state=True)


def text(name: str, prompt: list[int], **fields: object) -> Submit:
    return submit(name, prompt, 0, **fields)


def answers(driver: Driver, *submits: Submit) -> dict[str, Output]:
    """Returns the only output of each request, when all have ended."""
    for one in submits:
        driver.handle(one)
    return {name: only for name, (only,) in by_request(run(driver)).items()}


def request(name: str, prompt: list[int], second: int = 0) -> SampledRequest:
    return SampledRequest(name, prompt, 0, sampling=TokenSampling(), seed=7, second=second)


class TestBatches:
    def test_texts_become_flat_arrays_with_their_types(self) -> None:
        executor, started = SummingExecutor(), list[Started]()
        runner = EncodingRunner(executor, Encoding(types=True), started.extend)
        pair, alone = request("a", [5, 6, 7, 8], second=2), request("b", [9, 10])
        chunks = [Chunk(one, 0, len(one.prompt), samples=True) for one in (pair, alone)]
        for one in (pair, alone):
            runner.add(one)
        step = runner.submit(Batch(1, tuple(chunks)))
        (inputs,) = executor.inputs
        assert inputs.tokens.tolist() == [5, 6, 7, 8, 9, 10]
        assert inputs.types.tolist() == [0, 0, 1, 1, 0, 0]
        assert inputs.positions.tolist() == [0, 1, 2, 3, 0, 1]
        assert inputs.block_tables.shape == (2, 0)
        assert inputs.logit_rows.tolist() == [0, 4]
        assert (step.shape.rows, step.shape.logit_rows, step.shape.sequences) == (6, 2, 2)
        result = runner.wait(step)
        assert result.tokens == [(), ()]
        assert [np.frombuffer(values_of(result, at)[0], "<f4").tolist() for at in (0, 1)] == [
            [26.0, 2.0, 4.0],
            [19.0, 0.0, 2.0],
        ]
        assert [(each.id, each.seed) for each in started] == [("a", 7), ("b", 7)]

    def test_texts_have_their_adapters_and_a_step_their_time(self) -> None:
        executor, kind = SummingExecutor(), AdapterKind(8)
        runner = EncodingRunner(executor, Encoding(), lambda _started: None, kinds={2: kind})
        adapted, plain = request("a", [5, 6, 7]), request("b", [9])
        adapted.adapter = 2
        for one in (adapted, plain):
            runner.add(one)
        chunks = [Chunk(one, 0, len(one.prompt), samples=True) for one in (adapted, plain)]
        step = runner.submit(Batch(1, tuple(chunks)))
        assert executor.inputs[0].adapters.tolist() == [2, 2, 2, -1]
        assert step.shape.adapters == (AdapterRows(kind, (3, 1)),)

    def test_both_texts_have_type_0_where_there_is_one_type(self) -> None:
        executor = SummingExecutor()
        runner = EncodingRunner(executor, Encoding(types=True, one_type=True), lambda _started: None)
        pair = request("a", [5, 6, 7, 8], second=2)
        runner.add(pair)
        runner.submit(Batch(1, (Chunk(pair, 0, 4, samples=True),)))
        assert executor.inputs[0].types.tolist() == [0, 0, 0, 0]

    def test_what_sees_the_tokens_before_gives_its_last_row(self) -> None:
        executor = SummingExecutor()
        runner = EncodingRunner(executor, LAST_TOKEN, lambda _started: None)
        some, rest = request("a", [1, 2, 3]), request("b", [4, 5, 6, 7])
        some.block_ids, rest.block_ids = [3], [5]
        for one in (some, rest):
            runner.add(one)
        chunks = (Chunk(some, 0, 2, samples=False), Chunk(rest, 1, 3, samples=True))
        result = runner.wait(runner.submit(Batch(1, chunks)))
        assert executor.inputs[0].logit_rows.tolist() == [4]
        assert executor.inputs[0].block_tables.tolist() == [[3], [5]]
        assert executor.inputs[0].types.shape == (0,)
        assert [values_of(result, at)[1] for at in (0, 1)] == [0, 1]

    @pytest.mark.parametrize(
        ("model", "encoding"),
        [
            ("bert-base", Encoding(types=True, per_token=True)),
            ("roberta-base", Encoding(types=True, one_type=True, per_token=True)),
            ("llama-3.1-8b", Encoding(causal=True, keeps_state=True)),
        ],
    )
    def test_a_graph_says_what_it_gives(self, model: str, encoding: Encoding) -> None:
        assert Encoding.of(architecture(model).graph(FORMATS["bf16"], 128)) == encoding


TEXTS = [text(f"r{n}", [n + 1 + i for i in range(1 + 7 * n % 40)], second=n % 3) for n in range(24)]


class TestDriver:
    @pytest.mark.parametrize("seqs", [1, 3, 8])
    def test_values_are_equal_however_requests_are_batched(self, seqs: int) -> None:
        found = answers(Driver(encoder(max_num_seqs=seqs)), *TEXTS)
        for one in TEXTS:
            ids, out = one.prompt, found[one.id]
            types = len(ids) - one.second if one.second else 0
            assert floats(out) == [[sum(ids), types, len(ids)]]
            assert (out.finish_reason, out.tokens, out.error) == ("stop", [], None)

    def test_a_decoder_is_chunked_and_finds_prefixes(self) -> None:
        driver = Driver(encoder(LAST_TOKEN, max_num_batched_tokens=16))
        (first,) = answers(driver, text("a", list(range(40)))).values()
        assert driver.stats()[0].steps == 3
        (again,) = answers(driver, text("b", list(range(40)))).values()
        assert (first.cached, again.cached) == (0, 32)
        assert floats(first)[0][2] == floats(again)[0][2] == 8  # rows of the last chunk

    def test_numbers_that_overflow_end_their_request_alone(self) -> None:
        driver = Driver(encoder())
        found = answers(driver, text("good", [1, 2]), text("bad", [1, BAD]), text("fine", [3]))
        assert (found["bad"].finish_reason, found["bad"].error_kind) == ("error", "overflow")
        assert found["bad"].values == b""
        assert [floats(found[name]) for name in ("good", "fine")] == [[[3.0, 0.0, 2.0]], [[3.0, 0.0, 1.0]]]
        assert driver.stats()[0].overflows == 1

    def test_what_is_counted(self) -> None:
        driver = Driver(encoder())
        answers(driver, text("a", [1, 2]), text("b", [3, 4, 5]))
        (stats,) = driver.stats()
        assert (stats.prompt_tokens, stats.generation_tokens, stats.steps) == (5, 0, 1)
        assert stats.padded_tokens == 32 - 5
        assert (stats.blocks_total, stats.blocks_held, stats.preemptions) == (0, 0, 0)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (submit("a", [1], 3), "generates nothing"),
            (text("a", [1], grammar="start: /a/"), "generates nothing"),
            (text("a", [1] * 65), "65 tokens; at most 64 fit"),
            (text("a", []), "empty"),
            (text("a", [1, 2], second=3), "second"),
        ],
    )
    def test_what_it_does_not_do_is_refused(self, wrong: Submit, message: str) -> None:
        (refused,) = answers(Driver(encoder()), wrong).values()
        assert (refused.finish_reason, refused.error_kind) == ("error", "invalid")
        assert message in str(refused.error)
