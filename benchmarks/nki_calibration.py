"""Predicted times of published NKI kernels against measured ones, and the fit of the constants.

    python benchmarks/nki_calibration.py ../AccelOpt ../aws-neuron-sdk          prints a row a kernel
    python benchmarks/nki_calibration.py ../AccelOpt ../aws-neuron-sdk --fit    writes constants.json

Kernels and measurements stay outside of the repository: give checkouts of zhang677/AccelOpt (47e29a7) and
aws-neuron/aws-neuron-sdk (v2.26.0), and a table of measurements with --rows.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.run.calls import Call, run
from corepipe.nki.run.loading import module_of
from corepipe.nki.run.simulate import installed
from corepipe.nki.timing.compiled import Compiled, compiled
from corepipe.nki.timing.constants import DOCUMENTED, FILE, Constants, Fitted, shipped
from corepipe.nki.timing.timed import kind_of, times_of
from corepipe.nki.timing.times import Times
from corepipe.planning.calibration.fit import least_squares

F64 = npt.NDArray[np.float64]

ROWS = Path(__file__).resolve().parents[2] / "shared" / "data" / "nki_kernels.csv"

PROFILE_FRAME_US = 100.0
"""Time that a profile of AccelOpt's rows counts besides the kernel: `total_time` is 0.07 to 0.13 ms above the
time that its operations and its utilisation give, for 8 of 11 kernels."""

PULL = 1.0
"""A fit draws constants to the documented ones as strongly as one kernel that is off by as much."""

BOUNDS = {
    "dma_efficiency": (0.7, 1.1),
    "vector_overhead": (40.0, 200.0),
    "scalar_overhead": (40.0, 300.0),
    "tensor_overhead": (40.0, 120.0),
    "frame_us": (3.0, 30.0),
}
"""The least and the most of each constant."""

COVERAGE = 0.8
"""Share of kernels whose measured time the interval should hold."""

KINDS = ("plain", "spills", "short")

PARTS = {"fp32": np.dtype(np.float32), "bf16": np.dtype("float16")}
"""Types of the rows; float16 has bfloat16's width and speed."""


@dataclass
class Row:
    """A measurement, and the kernel that was measured."""

    raw: Mapping[str, str]
    roots: Mapping[str, Path]

    @property
    def name(self) -> str:
        return self.raw["id"]

    @property
    def measured_us(self) -> float:
        frame = PROFILE_FRAME_US if "neuron-profile view total_time" in self.raw["method"] else 0.0
        return float(self.raw["measured_us"]) - frame

    @property
    def family(self) -> str:
        """The kernel: a fold leaves all of its rows out."""
        return re.sub(r"_C\d+_S\d+", "", self.name)

    def number(self, name: str) -> float | None:
        return float(self.raw[name]) if self.raw[name] else None

    @cached_property
    def recorder(self) -> Recorder:
        """The kernel, recorded once without values."""
        with installed():
            module = module_of(self.roots[self.raw["repository"]] / self.raw["path"])
            kernel = getattr(module, self.raw["entry"])
            return run(Call(kernel, self.inputs(), {}), self.raw["nc"][:2], values=False).recorder

    @cached_property
    def compiled(self) -> Compiled:
        return compiled(self.recorder)

    def inputs(self) -> Sequence[Any]:
        """Returns arrays of zeros: their values change no time."""
        if self.name.startswith("accelopt/"):
            return self._reference_inputs()
        dtype = PARTS[self.raw["dtype"]]
        sizes = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", self.raw["shapes"])}
        if "mamba" in self.name:
            channels, length, state = sizes["channels"], sizes["seq_len"], sizes["state"]
            shapes = [(1, channels, length)] * 2 + [(channels, state)] + [(1, state, length)] * 2
            return [np.zeros(s, dtype) for s in shapes]
        if "layernorm" in self.name:
            rows, columns = (int(n) for n in re.findall(r"(\d+)x(\d+)", self.raw["shapes"])[0])
            return [
                np.zeros((rows, columns), dtype),
                1e-6,
                np.zeros(columns, dtype),
                np.zeros(columns, dtype),
            ]
        found = re.findall(r"\w+\[(\d+),(\d+)\]", self.raw["shapes"])
        return [np.zeros((int(a), int(b)), dtype) for a, b in found]

    def _reference_inputs(self) -> Sequence[Any]:
        path = re.search(r"inputs: (\S+\.py)", self.raw["notes"])
        assert path is not None
        reference = module_of(self.roots[self.raw["repository"]] / path[1])
        with patch("numpy.random.normal", _zeros):
            inputs: Sequence[Any] = reference.transform_to_nki_inputs(reference.get_inputs())
        return inputs

    def times(self, constants: Constants) -> Times:
        """Returns the predicted times; of intervals nothing is known yet."""
        unknown = Fitted(constants, dict.fromkeys(KINDS, (1.0, 1.0)), "")
        return times_of(self.compiled, self.recorder, unknown)


def read_rows(path: Path, accelopt: Path, sdk: Path) -> list[Row]:
    """Returns the rows whose kernels were found and run."""
    roots = {"zhang677/AccelOpt": accelopt, "aws-neuron/aws-neuron-sdk": sdk}
    with path.open(newline="") as file:
        return [Row({**r, "repository": r["source"]}, roots) for r in csv.DictReader(file)]


def _zeros(loc: float = 0, scale: float = 1, size: tuple[int, ...] = ()) -> npt.NDArray[np.float32]:  # noqa: ARG001
    """Returns zeros with the shape of random numbers."""
    return np.zeros(size, np.float32)


# The fit


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of today's compilers: of those that an older one compiled, by their notes, only the
    last of each problem takes the same time today."""
    last = {row.raw["group"]: row.name for row in rows}
    return [r for r in rows if "older compiler" not in r.raw["notes"] or last[r.raw["group"]] == r.name]


def fit(rows: Sequence[Row], start: Constants) -> tuple[Constants, F64, F64]:
    """Returns the constants that suit all rows, and at these the logarithms of predicted / measured times,
    and how they change with the logarithm of each constant."""
    weights, origin = weights_of(rows), logs(start)
    low, high = bounds()

    def residuals(x: F64) -> F64:
        return np.concatenate([errors(rows, x) * weights, np.sqrt(PULL) * (x - origin)])

    best = least_squares(residuals, np.clip(origin, low + 1e-6, high - 1e-6), low, high)
    at_best = errors(rows, best)
    slopes = [(errors(rows, best + step) - at_best) / 0.05 for step in 0.05 * np.eye(len(best))]
    return from_logs(best), at_best, np.stack(slopes, axis=1)


def folds(rows: Sequence[Row], best: Constants, at_best: F64, slopes: F64) -> dict[str, Constants]:
    """Returns for each kernel the constants of a fit without it.

    Near the fit to all rows the logarithms of times are taken as linear in those of constants.
    """
    weights, origin, middle = weights_of(rows), logs(DOCUMENTED["v2"]), logs(best)
    found = {}
    for family in sorted({row.family for row in rows}):
        kept = np.array([row.family != family for row in rows])

        def residuals(x: F64, kept: npt.NDArray[np.bool_] = kept) -> F64:
            predicted = at_best + slopes @ (x - middle)
            return np.concatenate([(predicted * weights)[kept], np.sqrt(PULL) * (x - origin)])

        found[family] = from_logs(least_squares(residuals, middle, *bounds()))
    return found


def errors(rows: Sequence[Row], x: F64) -> F64:
    constants = from_logs(x)
    return np.array([np.log(row.times(constants).seconds * 1e6 / row.measured_us) for row in rows])


def weights_of(rows: Sequence[Row]) -> F64:
    """Returns 1 / sqrt(rows of the kernel): all of its lengths count as one."""
    count = Counter(row.family for row in rows)
    return np.array([count[row.family] ** -0.5 for row in rows])


def bounds() -> tuple[F64, F64]:
    low, high = (np.log([BOUNDS[f.name][i] for f in fields(Constants)]) for i in (0, 1))
    return low, high


def logs(constants: Constants) -> F64:
    return np.log([getattr(constants, f.name) for f in fields(Constants)])


def from_logs(x: F64) -> Constants:
    return Constants(*(float(np.exp(value)) for value in x))


def intervals(errors_of: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Returns the factors of the lowest and highest time by kind, from logarithms of measured / predicted of
    kernels that were left out: a conformal quantile; short kernels, of which there is no row, are as those
    that spill."""
    found = {}
    for kind in KINDS:
        sizes = sorted(abs(e) for e in errors_of.get(kind) or errors_of["spills"])
        size = sizes[min(len(sizes), int(np.ceil((len(sizes) + 1) * COVERAGE))) - 1]
        found[kind] = (round(float(np.exp(-size)), 3), round(float(np.exp(size)), 3))
    return found


def _error(row: Row, found: Times) -> float:
    """Returns the logarithm of measured / predicted."""
    return float(np.log(row.measured_us / found.seconds / 1e6))


def record(
    path: Path, rows: Sequence[Row], fitted: Constants, without: Mapping[str, Constants], largest: float
) -> dict[str, Any]:
    """Returns the contents of constants.json: v3 and v4 have no rows and keep what is documented, with the
    largest error of any row of v2, a logarithm, as their interval."""
    left_out = {row.name: row.times(without[row.family]) for row in rows}
    errors_of: dict[str, list[float]] = {}
    for row in rows:
        found = left_out[row.name]
        kind = kind_of(found.seconds, found.traffic)
        errors_of.setdefault(kind, []).append(_error(row, found))
    print("\nEach kernel with the constants of a fit without it:")
    show(rows, left_out)
    summary(rows, left_out)
    factor = round(float(np.exp(largest)), 1)
    unseen = f"the interval is the largest error that was seen on trn1, a factor of {factor}"
    known = {
        "v2": f"{len(rows)} measured times of {len(without)} kernels on trn1: {COVERAGE:.0%} of them are "
        "within the interval of a fit without their kernel",
        "v3": f"costs of instruction traces on trn2, no time of a kernel; {unseen}",
        "v4": f"published costs and, where there are none, trn2's; no time of a kernel; {unseen}",
    }
    widest = dict.fromkeys(KINDS, (round(1 / factor, 3), factor))
    interval = {"v2": intervals(errors_of), "v3": widest, "v4": widest}
    chosen = {**DOCUMENTED, "v2": fitted}
    return {
        **{v: {"constants": asdict(chosen[v]), "interval": interval[v], "known": known[v]} for v in chosen},
        "provenance": {
            "date": datetime.now(UTC).date().isoformat(),
            "rows_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "rows_used": {"v2": len(rows)},
            "method": "robust least squares on log(predicted / measured); benchmarks/nki_calibration.py",
            "folds": {family: asdict(constants) for family, constants in without.items()},
        },
    }


# Reports


def show(rows: Sequence[Row], times: Mapping[str, Times]) -> None:
    """Prints a line for each kernel: times, the share of each engine, and traffic against its counters."""
    print(f"{'kernel':44}{'us':>8}{'ours':>8}{'ratio':>7}  tens vect scal gpsi dma      read  write  bound")
    for row in rows:
        found = times[row.name]
        predicted = found.seconds * 1e6
        shares = "".join(f"{share:5.2f}" for share in engine_shares(found))
        traffic = "".join(f"{share:7}" for share in traffic_ratios(row, found))
        ratio = predicted / row.measured_us
        times_us = f"{row.measured_us:8.0f}{predicted:8.0f}{ratio:7.2f}"
        print(f"{row.name:44}{times_us} {shares} {traffic}  {found.bound.split(':')[0]}")


def engine_shares(times: Times) -> Iterator[float]:
    for engine in Engine:
        found = times.engines.get(engine)
        yield found.busy / times.seconds if found else 0.0


def traffic_ratios(row: Row, times: Times) -> Iterator[str]:
    """Yields predicted bytes as parts of measured ones, read and written."""
    for column, value in (("hbm_read_bytes", times.traffic.read), ("hbm_write_bytes", times.traffic.written)):
        measured = row.number(column)
        yield f"{value / measured:.2f}" if measured else "-"


def summary(rows: Sequence[Row], times: Mapping[str, Times]) -> None:
    """Prints the median errors by kind, the share of pairs in the right order, and errors of traffic."""
    predicted = {name: found.seconds * 1e6 for name, found in times.items()}
    kinds = {name: kind_of(found.seconds, found.traffic) for name, found in times.items()}
    for kind in KINDS:
        found = [abs(predicted[r.name] / r.measured_us - 1) for r in rows if kinds[r.name] == kind]
        if found:
            print(
                f"{kind}: {len(found)} kernels, median error {np.median(found):.1%}, worst {max(found):.0%}"
            )
    right, count = ordered(rows, predicted)
    print(f"order: right in {right} of {count} pairs of a problem that differ by more than 10 %")


def ordered(rows: Sequence[Row], predicted: Mapping[str, float]) -> tuple[int, int]:
    right = count = 0
    for a, b in combinations(rows, 2):
        if a.raw["group"].split("_C")[0] != b.raw["group"].split("_C")[0]:
            continue
        if max(a.measured_us, b.measured_us) > 1.1 * min(a.measured_us, b.measured_us):
            count += 1
            right += (a.measured_us > b.measured_us) == (predicted[a.name] > predicted[b.name])
    return right, count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("accelopt", type=Path)
    parser.add_argument("sdk", type=Path)
    parser.add_argument("--rows", type=Path, default=ROWS, help="measurements")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--fit", action="store_true", help="fit the constants and write them")
    given = parser.parse_args()
    rows = [r for r in read_rows(given.rows, given.accelopt, given.sdk) if given.only in r.name]
    constants = shipped()["v2"].constants
    if given.fit:
        used = comparable(rows)
        constants, at_best, slopes = fit(used, DOCUMENTED["v2"])
        without = folds(used, constants, at_best, slopes)
        largest = max(abs(_error(row, row.times(constants))) for row in rows)
        FILE.write_text(json.dumps(record(given.rows, used, constants, without, largest), indent=1) + "\n")
    print("\nAll rows with", constants)
    times = {row.name: row.times(constants) for row in rows}
    show(rows, times)
    summary(rows, times)


if __name__ == "__main__":
    main()
