"""The figures of a run for people, alike in a terminal and on a page: rows of a table, and facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from corepipe.bench.recorder import METRICS
from corepipe.bench.report import LoadReport
from corepipe.workload.slo import NO_SLO

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
LABELS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between chunks",
    "e2el": "end to end",
}


def latencies(document: Mapping[str, Any]) -> Iterator[tuple[str, bool, Iterator[str]]]:
    """Yields rows of `COLUMNS` in milliseconds: their label, and whether they are emulated."""
    for name in METRICS:
        if document[f"max_{name}_ms"]:
            yield LABELS[name], False, cells(document, name)
    device = document.get("device")
    if device is not None and document["max_ttft_ms"] is not None:
        for name in ("ttft", "tpot"):
            what = "emulated" if device["valid"] else "emulated, not valid: the host was too slow"
            yield f"{name.upper()}, {what}", True, cells(device, name)


def cells(figures: Mapping[str, Any], name: str, parts: Iterable[str] = COLUMNS) -> Iterator[str]:
    """Returns milliseconds; a dash where nothing was measured."""
    values = (figures[f"{part}_{name}_ms"] for part in parts)
    return ("–" if value is None else f"{value:,.1f}" for value in values)


def facts(report: LoadReport, document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields facts on the whole run, with their labels."""
    ends = report.recorder.ends
    others = "".join(f", {ends[end]} {end}" for end in ("failed", "cancelled", "unfinished") if ends[end])
    yield "requests", f"{ends['completed']} answered{others}, in {document['duration']:.1f} s"
    rates = (
        f"{document['request_throughput']:.2f} requests/s",
        *([f"{document['output_throughput']:,.1f} output tokens/s"] if report.generates else []),
        f"{document['total_token_throughput']:,.1f} tokens/s",
    )
    yield "throughput", ", ".join(rates)
    if report.conditions.slo != NO_SLO:
        good = f"{document['request_goodput']:.2f} requests/s meet the objectives: {report.good_share:.1%}"
        yield "goodput", good
    yield "load", _load(document)
    yield "tokens", _tokens(report)


def _tokens(report: LoadReport) -> str:
    recorder = report.recorder
    cached = recorder.cached_tokens / max(1, recorder.input_tokens)
    found = f" ({cached:.0%} from the prefix cache)" if cached else ""
    out = f", {recorder.output_tokens:,} out" if report.generates else ""
    return f"{recorder.input_tokens:,} in{found}{out}"


def _load(document: Mapping[str, Any]) -> str:
    under_way = (
        f"{document['mean_concurrent_requests']:.1f} under way on average, "
        f"{document['max_concurrent_requests']} at most"
    )
    if document["max_concurrency"] is not None:
        return f"{document['max_concurrency']} at a time; {under_way}"
    if document["offered_request_rate"] is None:
        return f"all at once; {under_way}"
    asked, to = (document["workload"].get(name) for name in ("rate", "rate_to"))
    parts = [f"{asked:.3g}{f' to {to:.3g}' if to else ''} requests/s asked"] if asked else []
    parts += [f"{document['offered_request_rate']:.3g} due", f"{document['sent_request_rate']:.3g} sent"]
    return f"{', '.join(parts)}; {under_way}"
