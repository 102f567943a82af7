"""Load tests of models that generate nothing: embeddings, classes and ranks."""

from __future__ import annotations

import json

import msgspec
import pytest

from corepipe.bench.files import rows
from corepipe.bench.page import run_page, sweep_page
from corepipe.bench.pooled import PooledAnswer, Results
from corepipe.cli.run.bench_view import print_report, print_sweep
from corepipe.workload.slo import Slo
from tests.bench.harness import play, play_sweep, synthetic
from tests.bench.stub import Behaviour

QUICK = Behaviour(first=0.01, pad=2)
APIS = ("embeddings", "classify", "rerank")


@pytest.mark.parametrize("api", APIS)
def test_each_api_is_asked_and_timed_to_its_end(api: str, capsys: pytest.CaptureFixture[str]) -> None:
    documents = 3 if api == "rerank" else 1
    report = play(QUICK, synthetic(users=2, requests=8), Slo(e2e=0.5), api=api, documents=documents)
    document = report.document()
    assert (document["completed"], document["failed"], document["slo_share"]) == (8, 0, 1.0)
    assert document["total_input_tokens"] == 8 * 20 * documents  # of a pair, where there is a query
    assert document["total_output_tokens"] == 0
    assert document["mean_e2el_ms"] == pytest.approx(10.0, rel=0.05)
    assert document["mean_ttft_ms"] is document["p99_tpot_ms"] is document["mean_itl_ms"] is None
    assert not any("token" in note for note in report.notes())
    print_report(report)
    shown = capsys.readouterr().out
    assert "end to end" in shown
    assert "time to first token" not in shown
    page = run_page(report)
    assert "end to end" in page
    assert "time to first token" not in page
    assert "nan" not in page
    head, first, *_ = rows([report]).splitlines()
    line = dict(zip(head.split(","), first.split(","), strict=True))
    assert (line["ttft_ms"], line["output_tokens"], line["end"]) == ("", "0", "completed")
    json.dumps(document)


def test_documents_of_a_query_are_different_texts() -> None:
    report = play(QUICK, synthetic(users=1, requests=2), api="rerank", documents=2)
    assert {o.input_tokens for o in report.recorder.outcomes} == {40}


@pytest.mark.parametrize(
    ("behaviour", "kinds"),
    [
        (Behaviour(first=0.01, cut=3), {"cut"}),
        (Behaviour(first=0.01, cut=3, error="engine died"), {"error"}),
        (Behaviour(first=0.01, refuse=3), {"429"}),
    ],
)
def test_failures_are_counted_by_kind(behaviour: Behaviour, kinds: set[str]) -> None:
    report = play(behaviour, synthetic(users=2, requests=12), api="embeddings")
    assert set(report.recorder.errors) == kinds
    assert report.recorder.ends["completed"] == 8


def answer(body: bytes, wanted: int = 2, status: int = 200) -> tuple[str, str] | None:
    """Returns the failure of an answer."""
    found = PooledAnswer(msgspec.json.Decoder(Results, strict=False), wanted)
    found.start(status)
    for piece in (body[:5], body[5:]):
        found.read(piece, 1.0)
    found.end(2.0)
    assert found.stamps.tolist() == ([] if found.reported_failure() or found.missing() else [1.0])
    return found.reported_failure() or found.missing()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"data": [{"embedding": [0.1]}, {"embedding": "AAAA"}], "usage": {"total_tokens": 3.0}}', None),
        (b'{"results": [{"index": 1}, {"index": 0}], "data": null, "usage": null}', None),
        (b'{"data": [{}, {}], "error": null, "object": "list"}', None),
        (b'{"data": [{}]}', "cut"),
        (b'{"data": []}', "cut"),
        (b'{"object": "list"}', "empty"),
        (b'{"error": {"message": "engine died"}}', "error"),
        (b'{"data": [{}, {}', "protocol"),
        (b"<html>", "protocol"),
        (b"", "protocol"),
        (b"[1, 2]", "protocol"),
        (b"[" * 10_000, "protocol"),
    ],
)
def test_answers(body: bytes, kind: str | None) -> None:
    found = answer(body)
    assert (found and found[0]) == kind
    refused = answer(body, status=503)
    assert refused is not None
    assert refused[0] == "503"


def test_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    stub, slo = Behaviour(first=0.02, slots=2), Slo(e2e=0.05)
    found = play_sweep(stub, synthetic(duration=1.0), 1.0, slo, "embeddings", rates=(20.0, 300.0))
    assert [stage.saturated for stage in found.stages] == [False, True]
    assert found.saturation == pytest.approx(100.0, rel=0.05)
    page = sweep_page(found)
    assert "e2el p99 (ms)" in page
    assert "ttft" not in page
    print_sweep(found)
    assert "E2EL p50" in capsys.readouterr().out
