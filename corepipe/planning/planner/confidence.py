"""Confidence in predicted figures: the cross-validation error of figures of their kind.

Errors come with the fitted constants, as cells of metric x instance x runtime profile (`score.Cell`).  For a
deployment the nearest cell counts: the same instance and profile, else the same generation of cores and
profile, else the same generation.  Percentiles other than the median are not validated anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.constants import provenance
from corepipe.planning.planner.space import DeploymentShape

METRICS: dict[str, tuple[str, ...]] = {
    "ttft": ("ttft", "ttft_whole_batch"),
    "tpot": ("tpot", "itl", "per_token_latency"),
    "throughput": ("output_throughput", "total_throughput"),
}
"""A plan's figures -> metrics of the measurements that validate them, the figure itself first."""

MEDIAN = 50.0
NOT_VALIDATED = "not validated"


@dataclass(frozen=True, slots=True)
class Confidence:
    """The error of a figure as a share (None: not validated), and the measurements that it comes from."""

    error: float | None
    basis: str

    def __str__(self) -> str:
        return self.basis if self.error is None else f"error {self.error:.0%}"


class Validation:
    """The cells of a cross-validation: objects with the fields of `score.Cell`.

    The error of a figure is at least that of its measurements (`noise`).
    """

    def __init__(self, cells: Sequence[Mapping[str, object]]) -> None:
        self._cells = [cell for cell in cells if cell["validated"]]

    def of(self, figure: str, shape: DeploymentShape) -> Confidence:
        """Returns the confidence of one of METRICS for a shape."""
        version = shape.device.chip.core.version
        cells = [c for c in self._cells if c["metric"] in METRICS[figure] and _version(c) == version]
        if not cells:
            return Confidence(None, f"{NOT_VALIDATED} on {shape.instance.partition('.')[0]}")
        order = METRICS[figure].index
        best = max(cells, key=lambda c: (_nearness(c, shape), -order(str(c["metric"])), c["n"]))
        basis = f"median of {best['n']} measurements, {best['instance']}, profile {best['profile']}"
        return Confidence(max(float(str(best[name])) for name in ("median", "noise")), basis)

    def worst(self, shape: DeploymentShape) -> Confidence:
        """Returns the lowest confidence of a shape's figures."""
        found = [self.of(figure, shape) for figure in METRICS]
        return max(found, key=lambda c: float("inf") if c.error is None else c.error)

    def tied(self, shape: DeploymentShape) -> float:
        """Returns the share by which the cost of a shape may differ from another's without being
        significant; 0 where that is unknown."""
        return self.of("throughput", shape).error or 0.0


def shipped_validation() -> Validation:
    """Returns the validation of the constants that come with corepipe."""
    return Validation(provenance().get("cells", ()))


def _version(cell: Mapping[str, object]) -> str | None:
    """Returns the generation of cores of a cell's instance."""
    return next((i.chip.core.version for i in INSTANCES if i.name == cell["instance"]), None)


def _nearness(cell: Mapping[str, object], shape: DeploymentShape) -> tuple[bool, bool]:
    return cell["profile"] == shape.profile.name, cell["instance"] == shape.instance
