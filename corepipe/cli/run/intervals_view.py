"""Coverage of intervals and quality of decisions, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from corepipe.cli.output.tables import Figures
from corepipe.planning.calibration.coverage import Coverage
from corepipe.planning.calibration.decisions import Decisions, PairOrder

LEFT_OUT = "left-out runs within their {level:.0%} intervals"


def show_coverage(console: Console, found: Sequence[Coverage], level: float, title: str = LEFT_OUT) -> None:
    """Prints how many runs lie in their intervals, by kind of figure."""
    names = ("kind of figure", ">runs", ">within", ">19 times of 20", ">width", ">")
    table = Figures(*names, title=title.format(level=level))
    for one in found:
        bound, off = f"{one.least:.0%} to {one.most:.0%}", "" if one.sound else "off"
        table.add_row(one.kind, str(one.runs), f"{one.share:.1%}", bound, f"x {one.width:.2f}", off)
    console.print(table)


def show_steps(console: Console, found: Mapping[int, tuple[int, float, float, float]]) -> None:
    """Prints whether intervals are wider, and errors larger, for runs farther from what was measured."""
    table = Figures("steps away", ">runs", ">within", ">width", ">mean |log error|")
    for steps, (runs, share, width, error) in found.items():
        table.add_row(str(steps), str(runs), f"{share:.1%}", f"x {width:.2f}", f"{error:.2f}")
    console.print(table)


def show_decisions(console: Console, found: Decisions) -> None:
    """Prints how often the predicted order of two configurations is the measured one."""
    table = Figures("two", ">intervals apart", ">right", ">overlapping", ">right")
    for name, (apart, overlapping) in {**found.by, "all": (found.apart, found.overlapping)}.items():
        table.add_row(name, *_order(apart), *_order(overlapping))
    console.print(table)
    regret = found.regret
    console.print(
        f"first choice by cost: the best of its group in {regret.best} of {regret.groups}; dearer than it by "
        f"{regret.mean:.1%} on average, {regret.p90:.1%} at p90, {regret.worst:.1%} at worst"
    )


def _order(order: PairOrder) -> tuple[str, str]:
    return str(order.pairs), "-" if order.share is None else f"{order.share:.1%}"
