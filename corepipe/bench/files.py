"""The files of a result: JSON for programs, CSV with every request, HTML for people."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.report import LoadReport
from corepipe.errors import UserError

COLUMNS = (
    "request_id", "session", "turn", "end", "error", "due_s", "late_ms", "ttft_ms", "tpot_ms", "e2e_ms",
    "asked_input_tokens", "input_tokens", "cached_tokens", "asked_output_tokens", "output_tokens", "chunks",
    "device_ttft_ms", "device_tpot_ms",
)  # fmt: skip
"""Columns of requests.csv; device_...: emulated times, as a corepipe server predicts them."""


def check_directory(path: Path | None) -> None:
    """Raises UserError where the files cannot be written: before the load test, leaving no file behind."""
    if path is None:
        return
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise UserError(f"--output {path}: {there} is no directory", "output")
    result = path / "result.json"
    if not os.access(there, os.W_OK | os.X_OK) or (result.exists() and not os.access(result, os.W_OK)):
        raise UserError(f"--output {path}: {there} may not be written", "output")


def write_files(path: Path, document: Mapping[str, Any], html: str, reports: list[LoadReport]) -> None:
    """Writes result.json, requests.csv and report.html.  Raises UserError where a file cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "result.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (path / "report.html").write_text(html, encoding="utf-8")
        (path / "requests.csv").write_text(rows(reports), encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror}", "output") from error


def rows(reports: list[LoadReport]) -> str:
    """Returns CSV with a line for each request, in the order in which they ended."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for report in reports:
        for outcome in report.recorder.outcomes:
            writer.writerow([_shown(value) for value in _row(outcome, report.span.start)])
    return text.getvalue()


def _row(o: RequestOutcome, start: float) -> tuple[object, ...]:
    completed = o.end == "completed"
    tpot = o.tpot if completed else None
    return (
        o.request_id, o.session, o.turn, o.end, o.error, o.intended - start, o.late * 1e3,
        o.ttft * 1e3 if o.first is not None and o.generated else None,
        None if tpot is None else tpot * 1e3,
        o.e2e * 1e3 if completed else None,
        o.asked_input, o.input_tokens, o.cached_tokens, o.asked_output, o.output_tokens, len(o.stamps),
        *o.device,
    )  # fmt: skip


def _shown(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1000 else f"{value:.3f}"
    return "" if value is None else value
