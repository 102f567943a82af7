"""The gain of each rule of docs/prediction.md: errors of all families in all campaigns with one rule switched
off.

    python benchmarks/prediction_rules.py ROWS.csv

Constants are fitted again without the rule.  A rule is kept where the mean error over the families in
campaigns falls; benchmarks/residuals.py decides so again for each of them that is left out."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fit_cost_model import fit_all

from corepipe.cli.output.common import results
from corepipe.cli.output.tables import Figures
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import usable
from corepipe.planning.calibration.physics import consistent
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.residuals import MeasuredRow, measured
from corepipe.planning.calibration.rows import Raw, campaign, family
from corepipe.planning.calibration.rules import Rules

MOST = 1.0
"""Largest error that counts, as a logarithm: one row does not decide on a rule."""

Errors = dict[int, float]
"""Errors by the number of the row."""


def _profiles(changed: Callable[[RuntimeProfile], RuntimeProfile]) -> Rules:
    """Returns rules whose profiles have other properties; none has another name."""
    return Rules(profiles={name: replace(changed(one), name=name) for name, one in PROFILES.items()})


def _as(name: str, other: str) -> Rules:
    """Returns rules in which a profile is as another."""
    return _profiles(lambda one: PROFILES[other if one.name == name else one.name])


def _alone(*names: str) -> Rules:
    """Returns rules in which profiles have no other that may hold instead."""
    return _profiles(lambda one: replace(one, otherwise="") if one.name in names else one)


def _without_lanes(one: RuntimeProfile) -> RuntimeProfile:
    return replace(one, attention=replace(one.attention, softmax_after_reads=False))


def _without_waves(one: RuntimeProfile) -> RuntimeProfile:
    return replace(one, policy="segregated") if one.policy == "waves" else one


RULES: Mapping[str, Rules] = {
    "one more token": Rules(one_more_token=False),
    "separate softmax of several prompts": _as(
        "transformers-neuronx-hsb", "transformers-neuronx-hsb-spilled"
    ),
    "buckets of trn2": _as("nxdi-trn2", "nxdi"),
    "waves of TGI": _profiles(_without_waves),
    "unknown stacks": _alone("stack-unknown"),
    "lanes of a softmax": _profiles(_without_lanes),
    "drift of encoders": Rules(drift=0.0),
    "tails": Rules(tails={}),
    "two kernels": _alone("optimum-tnx", "transformers-neuronx", "transformers-neuronx-hsb"),
}
"""The rules in force without each of them."""


def without(known: Sequence[Raw], used: Sequence[Raw]) -> dict[str, Errors]:
    """Returns the errors of the rows with each rule switched off, by the rule."""
    return {rule: _errors(known, used, Cases(rules=others)) for rule, others in RULES.items()}


def _errors(known: Sequence[Raw], used: Sequence[Raw], cases: Cases) -> Errors:
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
