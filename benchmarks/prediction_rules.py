"""The gain of each rule of docs/prediction.md: errors of all families in all campaigns with one rule switched
off.

    python benchmarks/prediction_rules.py ROWS.csv

Constants are fitted again without the rule.  A rule is kept where the mean error over the families in
campaigns falls; benchmarks/residuals.py decides so again for each of them that is left out."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from fit_cost_model import fit_all

from corepipe.cli.output.common import results
from corepipe.cli.output.tables import Figures
from corepipe.neuron.chips import profiles, rates
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.planning.calibration import cases as cases_module
from corepipe.planning.calibration import predict, rows, stacks
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import usable
from corepipe.planning.calibration.physics import consistent
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.residuals import MeasuredRow, measured
from corepipe.planning.calibration.rows import Raw, campaign, family

MOST = 1.0
"""Largest error that counts, as a logarithm: one row does not decide on a rule."""

Errors = dict[int, float]
"""Errors by the number of the row."""


def _profiles(**changed: RuntimeProfile) -> Callable[[], Iterator[None]]:
    """Returns a switch that gives profiles other properties."""
    table = {**PROFILES, **{one.name: one for one in changed.values()}}

    def switch() -> Iterator[None]:
        with ExitStack() as stack:
            for module in (profiles, stacks, predict):
                stack.enter_context(patch.object(module, "PROFILES", table))
            yield

    return switch


def _value(module: object, name: str, value: object) -> Callable[[], Iterator[None]]:
    """Returns a switch that gives a module another constant."""

    def switch() -> Iterator[None]:
        with patch.object(module, name, value):
            yield

    return switch


def _single(name: str) -> RuntimeProfile:
    return replace(PROFILES[name], otherwise="")


TWO_KERNELS = ("optimum-tnx", "transformers-neuronx", "transformers-neuronx-hsb")

RULES: Mapping[str, Callable[[], Iterator[None]]] = {
    "one more token": _value(cases_module, "sends_one_more", lambda _: False),
    "separate softmax of several prompts": _profiles(
        hsb=replace(PROFILES["transformers-neuronx-hsb-spilled"], name="transformers-neuronx-hsb")
    ),
    "buckets of trn2": _profiles(trn2=replace(PROFILES["nxdi"], name="nxdi-trn2")),
    "links between chips": _value(rates, "BETWEEN_CHIPS", {}),
    "unknown stacks": _profiles(unknown=_single("stack-unknown")),
    "lanes of a softmax": _value(rates, "LANES", 0),
    "drift of encoders": _value(stacks, "DRIFT", 0.0),
    "tails": _value(predict, "TAILS", {}),
    "two kernels": _profiles(
        **{
            name: _single(name)
            for name in ("optimum-tnx", "transformers-neuronx", "transformers-neuronx-hsb")
        }
    ),
}
"""Each rule and what switches it off."""


def without(known: Sequence[Raw], used: Sequence[Raw]) -> dict[str, Errors]:
    """Returns the errors of the rows with each rule switched off, by the rule."""
    return {rule: _errors(known, used, switch) for rule, switch in RULES.items()}


def _errors(known: Sequence[Raw], used: Sequence[Raw], switch: Callable[[], Iterator[None]]) -> Errors:
    with contextmanager(switch)():
        cases = Cases()
        predictor = Predictor(fit_all(used, cases, {}).constants, cases)
        return by_row(known, measured(known, lambda _: predictor))


def by_row(known: Sequence[Raw], found: Sequence[MeasuredRow]) -> Errors:
    numbers = {id(row): number for number, row in enumerate(known)}
    return {numbers[id(one.row)]: one.error for one in found}


def gains(known: Sequence[Raw], with_all: Errors, off: Errors) -> dict[tuple[str, str], float]:
    """Returns by family and campaign how much smaller the mean error is with the rule than without."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for number, error in with_all.items():
        row = known[number]
        found[family(row), campaign(row)].append(min(MOST, abs(off[number])) - min(MOST, abs(error)))
    return {owner: sum(each) / len(each) for owner, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="measurements, as fit_cost_model.py takes them")
    cases = Cases()
    known = consistent(tuple(completed(rows.read(parser.parse_args().rows).rows)), cases)
    used = usable(known, cases)
    predictor = Predictor(fit_all(used, cases, {}).constants, cases)
    with_all = by_row(known, measured(known, lambda _: predictor))
    table = Figures("rule", ">better", ">worse", ">mean error without", ">folds that drop it")
    for rule, off in without(known, used).items():
        gained = gains(known, with_all, off)
        total = sum(gained.values())
        better, worse = (sum(sign * gain > 0.003 for gain in gained.values()) for sign in (1, -1))
        dropped = sum(total - gain <= 0 for gain in gained.values())
        table.add_row(rule, str(better), str(worse), f"{total / len(gained):+.2%}", str(dropped))
    results().print(table)


if __name__ == "__main__":
    main()
