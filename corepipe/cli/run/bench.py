"""The work of `corepipe bench`: from flags to a load test, from its reports to text, files and an exit
code."""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import uvloop

from corepipe.bench.assertions import Assertion, unmet
from corepipe.bench.client import GENERATING, RequestSettings
from corepipe.bench.compare import compared, load_result
from corepipe.bench.files import check_directory, write_files
from corepipe.bench.page import run_page, sweep_page
from corepipe.bench.play import LoadTest, LoadTestSettings
from corepipe.bench.report import KEYS, LoadReport, detail
from corepipe.bench.setup import PromptShape, set_up
from corepipe.bench.sweep import SWEPT, sweep
from corepipe.bench.target import Http, Target, find
from corepipe.bench.transport import TransportError
from corepipe.cli.flags.options import Given
from corepipe.cli.flags.workload import DOCUMENTS, SENT_REQUESTS, STAGE_SECONDS
from corepipe.cli.output.common import errors, progress_bar
from corepipe.cli.run.bench_view import BenchProgress, print_compared, print_report, print_sweep
from corepipe.cli.run.workload import asked_slo, asked_workload, synthetic
from corepipe.errors import UserError
from corepipe.signals import answered
from corepipe.workload.slo import Slo
from corepipe.workload.workload import Synthetic, Workload

if TYPE_CHECKING:
    from corepipe.models.text.tokenizer import Tokenizer

NOTHING_ANSWERED, NOT_MET = 1, 3
MOST_FILES = 10_240
"""Open files that macOS allows where its hard limit is infinite."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A load test that is checked before anything is sent.  base: the workload of a sweep."""

    target: Target
    settings: LoadTestSettings
    workload: Workload
    base: Synthetic | None
    rates: tuple[float, ...]
    assertions: list[Assertion]
    old: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Tested:
    """A finished run or sweep: its document, its page, its reports, and notes for its reader."""

    document: dict[str, Any]
    html: Callable[[], str]
    reports: list[LoadReport]
    show: Callable[[], None]
    notes: list[str]


def run(given: Given) -> None:
    """Loads the server and prints what was found.

    Raises UserError for flags and servers that cannot be used, Exit where a condition is not met, nothing was
    answered or the run was interrupted.
    """
    plan = _plan(given)
    check_directory(given["output"])
    _allow_many_connections()
    with answered(
        {signal.SIGINT: signal.default_int_handler}, lambda: False
    ):  # a loop has its own for that one
        tested, code = uvloop.run(_test(plan, given))
    if tested is None:
        raise typer.Exit(code)
    _show(tested, plan, given)
    _exit(tested, plan, code)


async def _test(plan: Prepared, given: Given) -> tuple[Tested | None, int]:
    """Runs the load test; returns its result, and the exit code of the signal that ended it, or 0.

    Without a result where it was ended before a sweep's first stage was measured.
    """
    http = Http(plan.target, _key(given["api_key"]))
    try:
        live = BenchProgress(errors())
        test = await _prepared(plan, given, http, live)
        with _ended_by_signals(test) as codes:
            async with live.shown():
                if given["warmup"]:
                    await test.warm_up(plan.workload, given["warmup"])
                tested = await _sweep(test, plan, given) if plan.base else await _single(test, plan)
        return tested, codes[0] if codes else 0
    finally:
        http.pool.close()


async def _prepared(plan: Prepared, given: Given, http: Http, live: BenchProgress) -> LoadTest:
    """Finds the model on the server, and prepares its requests.  Raises UserError where it cannot be used."""
    try:
        found = await find(http, given["model"], given["wait"], plan.settings.asking.adapters)
        asking = replace(plan.settings.asking, model=found.model, device_times=found.is_corepipe)
        settings = replace(plan.settings, asking=asking)
        shape = PromptShape(plan.workload.talks, given["prefix_tree"] is not None)
        setup = await set_up(http, found, asking, settings.salt, settings.tokenizer, shape)
    except TransportError as error:
        raise UserError(f"{plan.target.url}: {error}", "url") from error
    return LoadTest(http, found, setup, settings, live.watch)


@contextmanager
def _ended_by_signals(test: LoadTest) -> Iterator[list[int]]:
    """Ends the load test at Ctrl-C and SIGTERM, the program at a second one; yields the list of exit
    codes."""
    loop, codes = asyncio.get_running_loop(), list[int]()

    def take(number: signal.Signals) -> None:
        if codes:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        codes.append(128 + number)
        test.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, take, number)
    try:
        yield codes
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _single(test: LoadTest, plan: Prepared) -> Tested:
    report = await test.play(plan.workload, "measuring")
    notes = list(report.notes())
    return Tested(report.document(), lambda: run_page(report), [report], lambda: print_report(report), notes)


async def _sweep(test: LoadTest, plan: Prepared, given: Given) -> Tested | None:
    reports: list[LoadReport] = []

    async def play(workload: Synthetic, name: str) -> LoadReport | None:
        report = await test.play(workload.workload(), name)
        if test.stopped:
            return None
        if not name.startswith("estimate"):
            reports.append(report)
        return report

    assert plan.base is not None
    found = await sweep(plan.base, given["duration"] or STAGE_SECONDS, play, plan.rates)
    if found is None:
        return None
    notes = [f"{s.rate:.3g} requests/s: {note}" for s in found.stages for note in s.report.notes()]
    page = partial(sweep_page, found, plan.old)
    return Tested(found.document(), page, reports, lambda: print_sweep(found), notes)


def _plan(given: Given) -> Prepared:
    """Checks every flag.  Raises UserError."""
    slo = asked_slo(given)
    given = _of_api(given, slo)
    base, rates = _swept(given) if given["sweep"] else (None, ())
    workload = base.workload() if base else asked_workload(given, "concurrency", SENT_REQUESTS)
    if given["trace"] is not None:
        for _ in workload.sessions():  # a line that is no request is an error before the load, not during it
            pass
    asking = RequestSettings(
        model="",
        adapters=tuple(given["lora_modules"] or ()),
        api=given["api"].value,
        documents=given["documents"] or 1,
        extra=_extra(given["extra_body"]),
        cancel=given["cancel"],
        seconds=given["timeout"],
        seed=given["seed"],
        keep_text=workload.talks,
        run_id=f"bench-{secrets.token_hex(3)}",
    )
    keep = given["sweep"] or given["output"] is not None
    salt = given["salt"] or secrets.token_hex(4)
    settings = LoadTestSettings(asking, slo, salt, keep, _tokenizer(given["tokenizer"]))
    assertions = [Assertion.parse(text) for text in given["assertions"] or ()]
    for assertion in assertions:
        assertion.check((*KEYS, *(SWEPT if given["sweep"] else ())))
    old = None if given["compare"] is None else load_result(given["compare"])
    return Prepared(Target.parse(given["url"]), settings, workload, base, rates, assertions, old)


def _of_api(given: Given, slo: Slo) -> Given:
    """Returns the flags, with what follows from --api.  Raises UserError for flags that it does not use."""
    api = given["api"].value
    if api != "rerank" and given["documents"] is not None:
        raise UserError("--documents needs --api rerank", "documents")
    if api in GENERATING:
        return given
    why = f"is not for --api {api}: it generates nothing, answers come whole"
    given.refuse(("output_len", "turns", "cancel", "trace"), why)
    if slo.ttft is not None or slo.tpot is not None:
        raise UserError(
            f"--slo: answers of --api {api} come whole; give e2e alone, such as 'e2e:200ms'", "slo"
        )
    documents = (given["documents"] or DOCUMENTS) if api == "rerank" else 1
    return given.replaced(output_len="1", documents=documents)


def _swept(given: Given) -> tuple[Synthetic, tuple[float, ...]]:
    """Returns what all stages of a sweep have in common, and the rates that were given."""
    given.refuse(("trace", "concurrency", "requests"), "is set by --sweep itself; leave it out")
    rates = () if given["rate"] is None else _rates(given["rate"])
    rate, duration = str(rates[0] if rates else 1.0), given["duration"] or STAGE_SECONDS
    return synthetic(given.replaced(rate=rate, duration=duration), "concurrency"), rates


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(sorted(float(rate) for rate in text.split(",")))
    except ValueError:
        rates = (0.0,)
    if not rates[0] > 0 or rates[-1] == float("inf"):
        raise UserError(f"--rate {text}: of a sweep it is a list of rates, as 1,2,4", "rate")
    return rates


def _extra(text: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(f"--extra-body {text}: is not JSON ({error})", "extra_body") from error
    if not isinstance(fields, dict):
        raise UserError(f"--extra-body {text}: give an object, as '{{\"top_p\": 0.9}}'", "extra_body")
    return fields


def _key(given: str | None) -> str | None:
    words = (given or "").split()
    return words[0] if words else None


def _tokenizer(name: str | None) -> tuple[str, Tokenizer] | None:
    if name is None:
        return None
    from corepipe.models import hub, registry  # noqa: PLC0415 -- heavy: most load tests do without
    from corepipe.models.text.directory_tokenizer import from_directory  # noqa: PLC0415

    with progress_bar(errors()) as report:
        path = hub.resolve(name, report)
    return name, from_directory(path) if path.is_dir() else registry.load(path).tokenizer()


def _show(tested: Tested, plan: Prepared, given: Given) -> None:
    """Writes the result to stdout and to files, and notes on it to stderr."""
    document = {**tested.document, "notes": tested.notes}
    if plan.old is not None:
        document["compared"] = compared(document, plan.old)
    if given["output"] is not None:
        _write(tested, document, given["output"])
    if given["json"]:
        typer.echo(json.dumps(document, indent=2))
    else:
        tested.show()
        if plan.old is not None:
            print_compared(document, plan.old)
    for note in tested.notes:
        errors().print(f"corepipe: {note}")


def _write(tested: Tested, document: Mapping[str, Any], path: Path) -> None:
    """Writes the files: a run's has the values of each request beside the sums, a sweep's has the stages."""
    first = tested.reports[0]
    each = {} if "stages" in document else detail(first.recorder.outcomes, first.span.start)
    write_files(path, {**document, **each}, tested.html(), tested.reports)


def _exit(tested: Tested, plan: Prepared, code: int) -> None:
    """Raises Exit unless all is well."""
    missed = list(unmet(plan.assertions, tested.document))
    for line in missed:
        errors().print(f"corepipe: {line}")
    if code:
        raise typer.Exit(code)
    if not any(report.recorder.ends["completed"] for report in tested.reports):
        errors().print("corepipe: no request was answered")
        raise typer.Exit(NOTHING_ANSWERED)
    if missed:
        raise typer.Exit(NOT_MET)


def _allow_many_connections() -> None:
    """Raises the limit of open files: a connection is one, and the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
