from __future__ import annotations

import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.bench.assertions import Assertion, unmet
from corepipe.bench.compare import compared, differences, load_result
from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.page import run_page
from corepipe.bench.recorder import METRICS, LatencyHistogram, Recorder
from corepipe.bench.report import KEYS, Conditions, HostEffort, LoadReport, detail
from corepipe.bench.runner import RunSpan
from corepipe.cli.run.bench_view import print_report
from corepipe.errors import UserError
from corepipe.workload.slo import Slo

VLLM = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
    "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests",
    *(f"{part}_{name}_ms" for name in METRICS for part in ("mean", "median", "std")),
    *(f"p{percent}_{name}_ms" for name in METRICS for percent in (50, 90, 95, 99)),
}  # fmt: skip
"""Keys that `vllm bench serve --save-result` writes."""


def outcome(number: int, due: float, first: float, gap: float, tokens: int) -> RequestOutcome:
    stamps = array("d", [due + first + gap * i for i in range(tokens)])
    return RequestOutcome(
        number, 0, 8, tokens, due, due, "completed", stamps[0], stamps[-1], stamps[-1], 8, 0, tokens,
        stamps,
    )  # fmt: skip


def report(
    *outcomes: RequestOutcome,
    slo: Slo | None = None,
    load: HostEffort | None = None,
    server: dict[str, bool] | None = None,
) -> LoadReport:
    recorder = Recorder(slo or Slo(), keep_stamps=True)
    for one in outcomes:
        recorder.take(one)
    conditions = Conditions(
        "http://x", "m", "chat", "words", None, {"rate": 4.0, "users": None}, "s", slo or Slo(), server
    )
    return LoadReport(conditions, recorder, RunSpan(10.0, 11.0, 12.0), load or HostEffort())


THREE = [outcome(i, 10.0 + i / 2, 0.1 * (i + 1), 0.01, 5) for i in range(3)]


def test_what_reads_vllm_results_reads_these() -> None:
    document = report(*THREE, slo=Slo(ttft=0.25)).document()
    assert set(document) >= VLLM
    assert document["request_throughput"] == pytest.approx(1.5)
    assert document["request_goodput"] == pytest.approx(1.0)
    assert document["output_throughput"] == pytest.approx(7.5)
    assert document["total_token_throughput"] == pytest.approx(39 / 2)
    assert document["mean_ttft_ms"] == pytest.approx(200.0)
    assert document["median_ttft_ms"] == document["p50_ttft_ms"] == pytest.approx(200.0, rel=1e-3)
    assert document["std_ttft_ms"] == pytest.approx(np.std([100, 200, 300]))
    assert document["p99_e2el_ms"] == pytest.approx(340.0, rel=1e-3)
    assert document["mean_tpot_ms"] == pytest.approx(10.0)
    assert document["mean_itl_ms"] == pytest.approx(10.0)
    assert document["max_output_tokens_per_s"] == 10.0
    assert document["endpoint_type"] == "openai-chat"


def test_each_request_under_the_keys_of_save_detailed() -> None:
    found = detail(THREE, 10.0)
    assert found["ttfts"] == pytest.approx([0.1, 0.2, 0.3])
    assert found["output_lens"] == [5, 5, 5]
    assert [len(gaps) for gaps in found["itls"]] == [4, 4, 4]
    assert found["start_times"] == [0.0, 0.5, 1.0]
    assert found["errors"] == ["", "", ""]


def test_percentiles_are_within_a_thousandth() -> None:
    values = np.random.default_rng(1).lognormal(-3, 1, 5000)
    found = LatencyHistogram()
    for value in values:
        found.add(float(value))
    for percent in (50.0, 90.0, 99.0):
        assert found.at(percent) == pytest.approx(
            np.percentile(values, percent, method="inverted_cdf"), rel=1.1e-3
        )
    assert found.mean == pytest.approx(values.mean())
    assert found.std == pytest.approx(values.std())
    buckets = [tuple(map(int, bucket.split(":"))) for bucket in found.encoded().split()]
    assert sum(count for _, count in buckets) == 5000
    assert np.average([v for v, _ in buckets], weights=[c for _, c in buckets]) == pytest.approx(
        values.mean() * 1e6, rel=1e-3
    )
    assert LatencyHistogram().at(50.0) == LatencyHistogram().mean == LatencyHistogram().std == 0.0


@given(st.integers(0, 10**11))
def test_a_bucket_is_within_a_two_thousandth(microseconds: int) -> None:
    found = LatencyHistogram()
    found.add(microseconds / 1e6)
    (told,) = found.encoded().split()
    assert int(told.partition(":")[0]) == pytest.approx(microseconds, rel=0.0005, abs=0.5)
    assert found.at(99.0) <= found.max


def test_several_tokens_in_a_chunk() -> None:
    one = outcome(0, 10.0, 0.1, 0.04, 3)
    one.output_tokens = 9
    assert one.tpot == pytest.approx(0.01)
    assert report(one).document()["mean_itl_ms"] == pytest.approx(40.0)
    assert one.gaps == pytest.approx([0.04, 0.04])


def test_answers_of_one_token_have_no_time_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor have those of which all chunks came at once; a note has their number."""
    single, at_once = outcome(0, 10.0, 0.1, 0.0, 1), outcome(1, 10.0, 0.1, 0.0, 4)
    assert single.tpot is at_once.tpot is None
    found = report(single, at_once, THREE[0], slo=Slo(tpot=0.011))
    assert found.document()["mean_tpot_ms"] == found.document()["max_tpot_ms"] == pytest.approx(10.0)
    assert found.document()["slo_share"] == 1.0
    assert any("2 of 3 answers have one token, or came in one piece" in note for note in found.notes())
    assert not any("one piece" in note for note in report(*THREE).notes())
    alone = report(single, slo=Slo(tpot=0.05))
    document = alone.document()
    assert document["mean_tpot_ms"] is document["p99_tpot_ms"] is document["max_itl_ms"] is None
    assert not Assertion.parse("p99_tpot_ms<50").holds(document)
    assert compared(document, report(*THREE).document()).keys().isdisjoint({"mean_tpot_ms"})
    print_report(alone)
    for shown in (capsys.readouterr().out, run_page(alone)):
        assert "per output token" not in shown
        assert "nan" not in shown


def test_a_page_says_when_how_many_and_how_well() -> None:
    found = report(*THREE, slo=Slo(ttft=0.25))
    page = run_page(found)
    day = found.document()["date"][:8]
    for told in (
        f"on {day[:4]}-{day[4:6]}-{day[6:]} ",
        "<td>requests</td><td>3 answered, in 2.0 s</td>",
        "<td>throughput</td><td>1.50 requests/s, 7.5 output tokens/s, ",
        "<td>goodput</td><td>1.00 requests/s meet the objectives: 66.7%</td>",
        " in, 15 out</td>",
        "Objectives: ttft:250ms.",
    ):
        assert told in page
    assert "goodput" not in run_page(report(*THREE))


def test_notes() -> None:
    assert any("99th percentile is the slowest" in note for note in report(*THREE).notes())
    late = outcome(0, 10.0, 0.1, 0.01, 5)
    late.sent = late.intended + 0.5
    assert any("generator itself was late" in note for note in report(late).notes())
    assert report(*THREE, load=HostEffort(cpu_seconds=1.9)).late
    slow = report(*THREE, load=HostEffort(steps=100, late_steps=50, time_scale_needed=3.4))
    expected = (
        "host slower than the device: percentiles are the host's, and emulated figures are not valid "
        "(50 of 100 steps late; --time-scale 3.4 would do)"
    )
    assert expected in list(slow.notes())
    short = outcome(0, 10.0, 0.1, 0.01, 5)
    short.asked_output = 50
    assert any("5 of 50 tokens" in note for note in report(short).notes())


@pytest.mark.parametrize(("late", "valid"), [(0, True), (3, True), (4, False)])
def test_figures_of_a_slow_host_are_marked(
    late: int, valid: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The note appears from three late steps of a hundred, in the document, in the table and on the page."""
    load = HostEffort(steps=100, late_steps=late, time_scale_needed=2.5)
    found = report(*THREE, load=load, server={"emulated": True})
    document = found.document()
    assert document["host_was_late"] is not valid
    assert document["device"]["emulated"] is True
    assert document["device"]["valid"] is valid
    assert document["device"]["time_scale_needed"] == (None if valid else 2.5)
    assert any("not valid" in note for note in found.notes()) is not valid
    print_report(found)
    for shown in (capsys.readouterr().out, run_page(found)):
        assert "TTFT, emulated" in shown
        assert ("not valid" in shown) is not valid
    assert report(*THREE).document()["host_was_late"] is False


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("mean_ttft_ms<201", True),
        ("mean_ttft_ms < 199", False),
        ("completed==3", True),
        ("completed>=4", False),
        ("failed<=0", True),
        ("request_throughput>1.4", True),
        ("request_goodput>0", False),
        ("generator_was_late==0", True),
        ("host_was_late==0", True),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    document = report(*THREE).document()
    condition = Assertion.parse(text)
    condition.check(KEYS)
    assert condition.holds(document) == holds
    assert bool(list(unmet([condition], document))) != holds


@pytest.mark.parametrize("text", ["", "p99", "p99_ttft_ms", "p99_ttft_ms=5", "<5", "a<b", "a<1.2.3"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(UserError, match="KEY<NUMBER"):
        Assertion.parse(text)


def test_a_key_that_is_not_there() -> None:
    with pytest.raises(UserError, match="did you mean p99_ttft_ms"):
        Assertion.parse("p99_tft_ms<5").check(KEYS)


def test_ratios(tmp_path: Path) -> None:
    old = report(*THREE).document()
    new = report(*[outcome(i, 10.0 + i / 2, 0.2 * (i + 1), 0.01, 5) for i in range(3)]).document()
    file = tmp_path / "result.json"
    file.write_text(json.dumps(old))
    for path in (file, tmp_path):
        pairs = compared(new, load_result(path))
        assert pairs["mean_ttft_ms"]["ratio"] == pytest.approx(2.0)
        assert pairs["mean_tpot_ms"]["ratio"] == pytest.approx(1.0)
    assert list(differences(new, old)) == []
    assert list(differences(new | {"model_id": "other"}, old)) == ["model_id: other now, m then"]


@pytest.mark.parametrize(("text", "said"), [(None, "No such file"), ("x", "not JSON"), ("{}", "no result")])
def test_what_is_no_result(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=said):
        load_result(file)
