"""Whatever the width of the terminal, what a table says is said whole."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.report import LoadReport
from corepipe.bench.sweep import Stage, Sweep
from corepipe.cli.app import app
from corepipe.cli.output.common import errors, results
from corepipe.cli.output.placement import print_placement
from corepipe.cli.output.plain import broken
from corepipe.cli.output.tables import Figures, facts
from corepipe.cli.run.bench_view import print_compared, print_report, print_sweep
from corepipe.models.registry import architecture
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.description import describe
from corepipe.workload.slo import Slo
from tests.bench.test_report import outcome, report
from tests.cli.test_picture import shown as picture
from tests.cli.test_plain import SMALL_PLAN
from tests.cli.test_predict import ROW
from tests.servers import run

WIDTHS = (20, 40, 60, 80, 100, 200)
LONG_NAME = "an-organisation/A-Model-With-A-Long-Name-1234567B-Instruct-v0.31-GGUF"


def words(text: str) -> Counter[str]:
    return Counter(text.split())


class Printed:
    """In a console's place: what a command printed, to be printed again at any width."""

    def __init__(self) -> None:
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def print(self, *what: Any, **how: Any) -> None:
        self._calls.append((what, how))

    def at(self, width: int) -> str:
        out = io.StringIO()
        console = Console(file=out, width=width, soft_wrap=True, highlight=False, emoji=False)
        for what, how in self._calls:
            console.print(*what, **how)
        return out.getvalue()

    def check(self) -> None:
        whole = words(self.at(4096))
        assert sum(whole.values()) > 20
        for width in WIDTHS:
            assert words(self.at(width)) == whole, width


COMMANDS = {
    "simulate": (
        "simulate llama-3.1-70b --instance trn1.32xlarge --tensor 32 --users 2 --requests 4 "
        "--output-len 4000 --slo ttft:1s --prefix-tree 4x64"
    ),
    "profile": "profile llama-3.1-8b --instance inf2.48xlarge --tensor 8 --batch 16 --input-len 8000",
    "nki": "nki examples/nki/swiglu.py",
    "validate": "validate {rows}",
    "plan": f"plan llama-3.2-1b --ttft 9s {SMALL_PLAN}",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_the_same_at_any_width(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    with rows.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(ROW))
        writer.writeheader()
        writer.writerows([ROW | {"value": "1e-5"}, ROW | {"batch_size": "16", "value": "1234567"}])
    printed = Printed()
    monkeypatch.setattr(f"corepipe.cli.run.{name}.results", lambda: printed)
    done = CliRunner().invoke(app, COMMANDS[name].format(rows=rows).split())
    assert done.exit_code == 0, done.exception
    printed.check()


def unwritten(arguments: str, **environment: str) -> list[str]:
    """The lines of a result in a pipe."""
    shown = run(*arguments.split(), env={**os.environ, **environment}).stdout.splitlines()
    assert len(shown) > 3
    return shown


@pytest.mark.parametrize(
    "arguments",
    [
        "simulate tests/data/tiny/llama3 --requests 2 --output-len 4",
        "profile llama-3.1-8b --instance inf2.xlarge --tensor 2",
        "ls --instance inf2.xlarge",
        "serve --help",
        "cache --help",
    ],
)
def test_lines_in_a_pipe_end_in_no_blanks(arguments: str) -> None:
    assert [line for line in unwritten(arguments) if line != line.rstrip()] == []


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(
    "text",
    [
        "one two " * 40,
        f"{LONG_NAME} at http://a-host-of-a-cluster.example.org:30443/some/path: it is not there " * 2,
        "  an indent: " + "more words " * 20 + "\n" + "a line-that-is-short",
        "words  with  gaps, --flags-with-hyphens and [brackets] " * 4,
    ],
)
def test_lines_in_a_terminal_break_between_words(text: str, width: int) -> None:
    shown = broken(text, width)
    assert words(shown) == words(text)
    assert all(len(line) <= width or " " not in line.strip() for line in shown.splitlines())
    assert [len(line) - len(line.lstrip()) for line in shown.splitlines()][:2] == [
        2 * text.startswith("  ")
    ] * 2


def test_a_command_for_a_shell_breaks_nowhere_else() -> None:
    command = "  corepipe serve --model " + "x" * 80 + " \\\n    --tensor 2 --pipeline 4 --max-model-len 2048"
    assert broken(command, 40) == command


def test_a_console_breaks_texts_where_its_width_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    for made in (results, errors):
        out = io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", out)
        made().print(Text("one two " * 10))
        made().print("three four " * 10, markup=False)
        assert max(map(len, out.getvalue().splitlines())) <= 30
        assert words(out.getvalue()) == words("one two three four " * 10)


def large(seconds: float) -> LoadReport:
    """Makes a report of requests that took this long for their first tokens, under long names."""
    outcomes: list[RequestOutcome] = [
        outcome(n, 10.0 + n, seconds * (n + 1), 1234.5678, 4000) for n in range(3)
    ]
    found = report(*outcomes, slo=Slo(ttft=1.0))
    long = replace(
        found.conditions, model=LONG_NAME, url="http://a-host-of-a-cluster.example.org:30443/some/path"
    )
    for one in found.recorder.device.values():
        one.add(98_765.4321)
    return replace(found, conditions=long)


@pytest.mark.parametrize("name", ["report", "sweep", "compared"])
def test_a_load_test_says_the_same_at_any_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = Printed()
    monkeypatch.setattr("corepipe.cli.run.bench_view.results", lambda: printed)
    now, then = large(98_765.4321), large(12_345.6789)
    match name:
        case "report":
            print_report(now)
        case "sweep":
            stages = Stage(1e-3, 1e-3, 1e-3, 5.0, then), Stage(4321.0, 4321.0, 123.456, 5.0, now)
            print_sweep(Sweep(stages))
        case "compared":
            print_compared(now.document(), then.document())
    printed.check()


def test_a_placement_says_the_same_at_any_width() -> None:
    graph = architecture("llama-3.1-405b").graph(FORMATS["bf16"])
    placement = {
        **dict.fromkeys(("format", "format_on_device", "instance", "runtime_profile", "reason"), "said"),
        **dict.fromkeys(("pipeline", "tensor", "data"), 1),
        "model": LONG_NAME,
        "timing_model": None,
        "time_scale": 1.0,
        "host_limits": [],
        "cores": describe(compile_for_timing(graph, Placement(2, 32))),
    }
    printed = Printed()
    print_placement(printed, placement)  # type: ignore[arg-type]
    printed.check()


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_a_picture_says_every_figure_at_any_width(width: int) -> None:
    options = {"replicas": 2, "tokens": 1_234_567.0, "dollars": 1234.567, "model": LONG_NAME}
    whole, narrow = (" ".join(picture(width=at, **options)) for at in (4000, width))
    assert "…" not in narrow
    figures = re.compile(r"\$?\d[\d.,:]*%?")
    left_out = Counter(figures.findall(whole)) - Counter(figures.findall(narrow))
    assert not left_out, narrow


TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
CELLS = st.lists(st.tuples(TEXT, st.lists(TEXT, max_size=4).map(" ".join), TEXT), min_size=1, max_size=4)


@given(CELLS, st.integers(1, 60))
def test_no_cell_loses_a_character(rows: list[tuple[str, str, str]], width: int) -> None:
    table = Figures("name", "what is said", ">figure")
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True, emoji=False).print(table)
    heads = "name what is said figure"
    assert words(out.getvalue()) == words(" ".join([heads, *(" ".join(row) for row in rows)]))


@given(st.integers(1, 200))
def test_what_fits_is_not_wider_than_the_terminal(width: int) -> None:
    out = io.StringIO()
    rows = [
        ("throughput", "12,345.6 tokens/s, 1.2 requests/s, 99 % of them good"),
        ("cost", "0.12 $ a token"),
    ]
    Console(file=out, width=width, soft_wrap=True).print(facts(rows))
    longest = max(len(line) for line in out.getvalue().splitlines())
    assert longest <= max(width, len("throughput") + len("requests/s,") + 4)
