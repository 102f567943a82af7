"""What each rule of the runtime profiles buys: leave-one-family-out errors with each of them switched off.

    python benchmarks/rule_ablation.py ROWS.csv                       # all rules, without what is under load
    python benchmarks/rule_ablation.py ROWS.csv --load --only links   # one rule, with it

Constants are fitted again for each.  The rules are those of docs/decisions/2026-11-22-prediction-rules.md, of
2026-11-22-convolutions.md what a beam search does, and of 2026-11-23-copies-and-beams.md; `sweep`, `lengths`
and `ends` are what the tester of loads does, 2026-11-23-what-a-sweep-sends.md: give them with --load.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from fit_cost_model import fit_and_folds

from corepipe.neuron.chips import rates
from corepipe.neuron.chips.constants import Constants
from corepipe.neuron.chips.engines import OpCost
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.profiles import NEVER, PROFILES, AttentionKernel, Buckets, RuntimeProfile
from corepipe.neuron.chips.rates import CoreLink, CoreRates, link
from corepipe.neuron.ops import experts
from corepipe.neuron.ops.costs import merged
from corepipe.planning.calibration import load, rows, stacks
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import family, usable
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.rows import Raw, text
from corepipe.planning.calibration.score import pair

FIRST, DECODE = {"ttft", "ttft_whole_batch"}, {"tpot", "itl", "per_token_latency"}


def _profiles(change: Callable[[RuntimeProfile], RuntimeProfile]) -> AbstractContextManager[object]:
    return patch.object(stacks, "PROFILES", {name: change(known) for name, known in PROFILES.items()})


def _style(**values: object) -> AbstractContextManager[object]:
    return _profiles(lambda p: replace(p, attention=replace(p.attention, **values)))  # type: ignore[arg-type]


def _fused(profile: RuntimeProfile) -> RuntimeProfile:
    if profile.attention.kernel is not AttentionKernel.SEPARATE:
        return profile
    return replace(profile, attention=replace(profile.attention, kernel=AttentionKernel.SQUARE))


def _one_kernel(profile: RuntimeProfile) -> RuntimeProfile:
    """For all lengths: as transformers-neuronx and NxD Inference each had it."""
    causal = (NEVER, NEVER) if profile.attention.expands_kv and profile.batched_prefill else (0, 0)
    return replace(profile, attention=replace(profile.attention, causal_from=causal))


def _whole_buckets(profile: RuntimeProfile) -> RuntimeProfile:
    halves = profile.prefill_buckets is Buckets.HALVES
    return replace(profile, prefill_buckets=Buckets.POWERS) if halves else profile


def _slower_of_two(instance: Instance, group: Sequence[int], memory: float, constants: Constants) -> CoreLink:
    way = link(instance, group, memory)
    return CoreLink(way.seconds, min(way.bytes_per_second, constants.collective_bytes_per_second))


def _weighs_and_adds(weighed: OpCost, added: OpCost, rates: CoreRates, result: int) -> tuple[OpCost, ...]:
    """In one operation, which reads an expert's results once."""
    crossing = experts.SUMMED * result
    return (merged((weighed, added), rates, read=result + crossing, written=crossing),)


def _one_beam(profile: RuntimeProfile) -> RuntimeProfile:
    return replace(profile, beams=1)


def _copied_once(profile: RuntimeProfile) -> RuntimeProfile:
    return replace(profile, result_copies=1)


OFF: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "softmax": lambda: _profiles(_fused),
    "windows": lambda: _style(masks_window=False),
    "kernels": lambda: _profiles(_one_kernel),
    "links": lambda: patch.object(rates, "_group_link", _slower_of_two),
    "batches": lambda: _style(batch_innermost=False),
    "halves": lambda: _profiles(_whole_buckets),
    "experts": lambda: patch.object(experts, "SUMMED", 0),
    "weighing": lambda: patch.object(experts, "summing", _weighs_and_adds),
    "copies": lambda: _profiles(_copied_once),
    "beams": lambda: _profiles(_one_beam),
    "picks": lambda: _style(rewrites_kv=False),
    "sweep": lambda: patch.object(load, "SWEEP_REQUESTS", 1 << 20),
    "lengths": lambda: patch.object(load, "SWEPT", replace(load.SPREAD, ended=load.SWEPT.ended)),
    "ends": lambda: patch.object(load, "SWEPT", replace(load.SWEPT, ended=0.0)),
}
"""How each rule is switched off."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--load", action="store_true", help="also what is measured under load")
    parser.add_argument("--only", choices=OFF, action="append", help="this rule alone")
    given = parser.parse_args()
    table = [row for row in completed(rows.read(given.rows).rows) if given.load or not _under_load(row)]
    _show("all rules", errors(table, nullcontext()))
    for name in given.only or OFF:
        _show(f"without {name}", errors(table, OFF[name]()))


def errors(table: Sequence[Raw], off: AbstractContextManager[object]) -> dict[str, list[float]]:
    """|error| by kind of figure, each row predicted without its family."""
    cases = Cases()
    with off:
        chosen, folds = fit_and_folds(usable(table, cases), cases)
        predictors = {name: Predictor(fold.constants, cases) for name, fold in folds.items()}
        other = Predictor(chosen.constants, cases)
        found = [predictors.get(family(row), other).predict(row) for row in table]
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for one in pair(table, found):
        if not one.assumed and text(one.row, "percentile") in {"", "mean", "p50"}:
            by_kind[kind_of_row(one.row)].append(abs(one.error()))
    return by_kind


def kind_of_row(row: Raw) -> str:
    """What a row is a figure of."""
    metric, task = text(row, "metric"), text(row, "task")
    if task in stacks.ENCODERS:
        return "encoders" if task == "encoder" else "convolutions"
    figure = "first token" if metric in FIRST else "decode" if metric in DECODE else "throughput"
    figure = "latency" if metric in {"latency", "request_latency"} else figure
    return f"load {figure}" if _under_load(row) else figure


def _under_load(row: Raw) -> bool:
    return bool(text(row, "arrival")) or text(row, "task").startswith("serving")


def _show(title: str, found: Mapping[str, Sequence[float]]) -> None:
    cells = (
        f"{kind} {np.median(e):.1%} / {np.quantile(e, 0.9):.1%} of {len(e)}"
        for kind, e in sorted(found.items())
    )
    print(f"{title}: {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
