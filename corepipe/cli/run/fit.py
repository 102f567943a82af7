"""The work of `corepipe fit`: makes a profile file from measurements, which predicts a model better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corepipe.cli.output.common import check_writable, errors, progress_bar, results, write_result
from corepipe.cli.output.tables import Figures, between
from corepipe.errors import UserError
from corepipe.neuron.chips.profiles import PROFILES, as_text
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.chips.scales import Scales
from corepipe.neuron.timing.uncertainty import interval
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.physics import RefusedRow, refused
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.refine import Refined, narrowed, refine
from corepipe.planning.calibration.residuals import MeasuredRow, measured
from corepipe.planning.calibration.results import MeasuredDeployment, read_result
from corepipe.planning.calibration.rows import Raw, is_rate, read, text

DEFAULT_PROFILE = "vllm-neuron"

SHOWN = 12
"""Figures whose intervals are printed, and rows that are refused by name."""


def run(given: Mapping[str, Any]) -> None:
    """Fits to the files and writes the profile.  Raises UserError for files and names that cannot be used."""
    output: Path = given["output"]
    base = given["profile"] or DEFAULT_PROFILE
    if base not in PROFILES:
        raise UserError(
            f"--profile {base}: give the name of a profile to refine: {', '.join(PROFILES)}", "profile"
        )
    check_writable("--output", output)
    cases = Cases(PROFILES[base] if given["profile"] else None)
    known, why = _read(given, base, cases)
    for line in why[:SHOWN]:
        errors().print(f"refused: {line}")
    if len(why) > SHOWN:
        errors().print(f"{len(why) - SHOWN} more rows are refused")
    before = _usable(known, cases)
    if not before:
        names = ", ".join(str(path) for path in given["files"])
        raise UserError(f"{names}: no row has a value that can be compared with a prediction")
    rows = [one.row for one in before]
    with progress_bar(errors()) as report:
        report("fitting", 0.0)
        found = refine(rows, cases)
    refined = replace(_profile(output.stem, base, rows, found), narrowed=narrowed(rows, found, cases))
    _show(before, found, refined, cases)
    write_result("--output", output, as_text(refined, base, {"rows": dict(found.rows)}))
    counted = ", ".join(f"{count} rows of {version}" for version, count in found.rows.items())
    errors().print(f"fitted to {counted}; wrote the profile to {output}; use it with --profile {output}")


def _read(given: Mapping[str, Any], base: str, cases: Cases) -> tuple[list[Raw], list[str]]:
    """Returns the rows of all files that can be believed, and why the others cannot.  Raises UserError for a
    file that cannot be read."""
    deployed = MeasuredDeployment(
        given["model"], given["instance"], given["dtype"], given["tensor"], given["pipeline"], given["data"],
        given["max_num_seqs"], given["max_model_len"], given["expert"],
    )  # fmt: skip
    rows: list[Raw] = []
    why: list[str] = []
    for path in given["files"]:
        found = _rows(path, deployed, base)
        bad = {one.number: one for one in refused(found, cases)}
        rows += [row for number, row in enumerate(found, 1) if number not in bad]
        why += [f"{path}, {_told(one, found)}" for one in bad.values()]
    return rows, why


def _rows(path: Path, deployed: MeasuredDeployment, base: str) -> list[Raw]:
    if path.is_dir() or path.suffix.lower() == ".json":
        return [{**row, "profile": base} for row in read_result(path, deployed)]
    return list(completed(read(path).rows))


def _told(one: RefusedRow, rows: Sequence[Raw]) -> str:
    return f"{one} ({text(rows[one.number - 1], 'metric')})"


def _usable(rows: Sequence[Raw], cases: Cases) -> list[MeasuredRow]:
    """Returns the measurements whose prediction assumes nothing, without tails."""
    predictor = Predictor(cases=cases)
    found = measured(rows, lambda _: predictor)
    return [one for one in found if not one.point.tail and not predictor.predict(one.row).assumed]


def _profile(name: str, base: str, rows: Sequence[Raw], found: Refined) -> RuntimeProfile:
    return replace(
        PROFILES[base],
        name=name,
        source=f"corepipe fit: {len(rows)} rows",
        constants=tuple(sorted(found.constants.items())),
        scales=found.scales,
        refines=base,
        otherwise="",
    )


def _show(before: Sequence[MeasuredRow], found: Refined, refined: RuntimeProfile, cases: Cases) -> None:
    """Prints each measured figure beside its predictions before and after, with their intervals."""
    predictor = found.predictor(cases)
    after = measured([one.row for one in before], lambda _: predictor)
    table = Figures("figure", ">measured", ">before", ">interval", ">after", ">interval")
    for one, other in list(zip(before, after, strict=True))[:SHOWN]:
        label = f"{text(one.row, 'metric')}, {text(one.row, 'unit')}"
        cells = (*_cells(one, PROFILES[refined.stack]), *_cells(other, refined))
        table.add_row(label, f"{one.value:.4g}", *cells)
    results().print(table)
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in refined.narrowed)
    learnt = "; ".join(filter(None, (_learnt(found.scales, decodes) for decodes in (False, True))))
    results().print(
        f"{learnt or 'steps take as long as predicted'}; intervals are narrower than before, to {shares}"
    )


def _cells(one: MeasuredRow, profile: RuntimeProfile) -> tuple[str, str]:
    """Returns a prediction and the interval of its measurement."""
    bounds = interval(one.point, profile).around(one.predicted, rate=is_rate(one.row))
    return f"{one.predicted:.4g}", between(bounds)


def _learnt(scales: Scales, decodes: bool) -> str:
    """Returns by which factor measured steps of one kind differ from their predictions, in words."""
    found = [scales.of(site) for site, _ in scales.learnt if site.decodes is decodes]
    if not found:
        return ""
    least, most = (f"{value:.2f}" for value in (min(found), max(found)))
    times = least if least == most else f"{least} to {most}"
    return f"{'other steps' if decodes else 'prompts'} take {times} times as long as predicted before"
