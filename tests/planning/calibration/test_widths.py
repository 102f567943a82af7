"""What is chosen of intervals: the best by brute force, without a look at the family that judges."""

from __future__ import annotations

import random
from dataclasses import replace
from math import log

import pytest

from corepipe.neuron.timing.uncertainty import FAR, Point, Residual, Widths, scored
from corepipe.planning.calibration.coverage import nested
from corepipe.planning.calibration.widths import GRID, choose, choose_nested

NEAR = Point("decode", "inf2.48xlarge", "nxdi", "decoder", 8, 2048)


def errors(seed: int, growth: float) -> list[Residual]:
    """Five families; the last two of them a step or two away, where errors are so many times as large."""
    draw = random.Random(seed)
    points = [NEAR, replace(NEAR, kind="first token")]
    far = [replace(NEAR, tokens=4096), replace(NEAR, tokens=8192, kind="first token")]
    found = []
    for number in range(5):
        for i in range(12):
            steps = max(0, number - 2)
            point = (far if steps else points)[i % 2]
            size = 0.05 * growth**steps
            found.append(Residual(point, f"family {number}", f"{number} {i}", draw.gauss(0, size), 1.0, "s"))
    return found


def loss(residuals: list[Residual], widths: Widths) -> float:
    """The interval score of `widths`, by the intervals that are made with them."""
    families = {one.family for one in residuals}
    held = nested(scored(residuals, widths), dict.fromkeys(families, widths), 0.9)
    kinds = {one.residual.point.kind for one in held}
    total = 0.0
    for kind in kinds:
        own = [one for one in held if one.residual.point.kind == kind]
        sizes = [min(FAR, abs(one.residual.error)) for one in own]
        reaches = [log(one.interval.high) for one in own]
        scores = (h + max(0.0, e - h) / 0.1 for e, h in zip(sizes, reaches, strict=True))
        total += sum(scores) / (sum(sizes) / len(sizes))
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_the_best_by_the_intervals_themselves(seed) -> None:
    residuals = errors(seed, 1.5)
    best = min(loss(residuals, widths) for widths in GRID)
    assert loss(residuals, choose(residuals)) == pytest.approx(best)


def test_what_a_family_is_judged_with_does_not_know_it() -> None:
    residuals = errors(0, 1.5)
    wild = [replace(one, error=one.error * 9) if one.family == "family 0" else one for one in residuals]
    assert choose_nested(residuals)["family 0"] == choose_nested(wild)["family 0"]
