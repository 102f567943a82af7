"""Rows of a file of measurements, or of configurations to predict: read, checked, and written again.

The columns are: instance, neuroncores_used, model, task, params_b, dtype, parallelism, batch_size, input_len,
output_len, metric, value, unit, percentile, source, sdk, seq_len, config_id, family, weight_class, arrival,
users, rate, profile.  Any may be missing; an error names a missing one that a prediction needs.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from corepipe.errors import UserError
from corepipe.neuron.formats import DType, Format

Raw = Mapping[str, str]

MOST = 1 << 20
"""Largest count of tokens, sequences or cores; larger ones are mistakes."""

UNITS = {
    "ms": 1e-3,
    "s": 1.0,
    "us": 1e-6,
    "tokens/s": 1.0,
    "inferences/s": 1.0,
    "req/s": 1.0,
}
"""One of each unit in seconds, or per second."""

RATES = frozenset({"tokens/s", "inferences/s", "req/s"})


DAY = re.compile(r"\b(20\d\d-\d\d-\d\d)-\d\d-\d\d-\d\d\b")
"""The day in the name that guidellm gives to a report."""


class Unpredictable(Exception):  # noqa: N818 -- an answer, not an error
    """Raised for a row that cannot be predicted; the message is the reason.

    column: whose cell cannot be read, where that is the reason.
    """

    def __init__(self, reason: str, column: str = "") -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True, slots=True)
class RowTable:
    """A file's header and its rows."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


def read(path: Path) -> RowTable:
    """Reads a CSV file with a header.  Raises UserError."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.DictReader(file, restval="", restkey="")
            rows = tuple({key: value for key, value in row.items() if key} for row in reader)
            columns = tuple(reader.fieldnames or ())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except csv.Error as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}") from error
    if not columns:
        raise UserError(f"{path}: is empty; its first line must name the columns")
    if missing := {"model", "instance", "metric"} - set(columns):
        raise UserError(f"{path}: lacks the column {', '.join(sorted(missing))}")
    return RowTable(columns, rows)


def read_measured(path: Path) -> RowTable:
    """Reads a file, as `read` does, whose rows are measurements.  Raises UserError, which names the first
    line whose value is no positive number, or has no unit."""
    table = read(path)
    for line, row in enumerate(table.rows, 2):
        try:
            if number(row, "value") is not None and text(row, "unit") not in UNITS:
                given = text(row, "unit") or "missing"
                raise Unpredictable(f"unit is {given:.40}; give one of {', '.join(UNITS)}")
        except Unpredictable as error:
            raise UserError(f"{path}, line {line}, {error}") from error
    return table


def as_csv(columns: Sequence[str], rows: Iterable[Raw]) -> str:
    """Returns the rows under a header, as CSV."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def text(row: Raw, column: str) -> str:
    """Returns a cell without the spaces around it; empty where the column is missing."""
    return (row.get(column) or "").strip()


def is_rate(row: Raw) -> bool:
    """Tells whether higher values are better."""
    return text(row, "unit") in RATES


def family(row: Raw) -> str:
    """Returns the family of a row's model: its models are left out of a fold together."""
    return text(row, "family") or text(row, "model")


def campaign(row: Raw) -> str:
    """Returns the campaign of a row: a benchmark, with one SDK or on one day, on one instance."""
    day = DAY.search(text(row, "source"))
    names = [text(row, name) for name in ("task", "sdk", "instance")]
    return " ".join([*names, day[1]] if day else names)


def count(row: Raw, column: str, default: int | None = None) -> int:
    """Returns a whole number that is not negative.  Raises Unpredictable."""
    cell = text(row, column)
    if not cell and default is not None:
        return default
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and 0 <= value <= MOST and value == int(value)):
        raise Unpredictable(f"{column} must be a whole number up to {MOST}, not {cell!r:.40}", column)
    return int(value)


def number(row: Raw, column: str) -> float | None:
    """Returns a positive number; None for an empty cell.  Raises Unpredictable."""
    cell = text(row, column)
    if not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value > 0):
        raise Unpredictable(f"{column} must be a positive number, not {cell!r:.40}", column)
    return value


def input_tokens(row: Raw) -> int | tuple[int, int]:
    """Returns the tokens of a prompt, or height and width of an image ("224x224"); 0: not known."""
    cell = text(row, "input_len")
    if image := re.fullmatch(r"(\d{1,5})\s*[x×]\s*(\d{1,5})", cell):
        return int(image[1]), int(image[2])
    return count(row, "input_len", 0)


@dataclass(frozen=True, slots=True)
class RowDegrees:
    """Numbers of tensor ranks, stages, replicas, and cores of a stage that divide experts, as Placement's."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1


def degrees(row: Raw) -> RowDegrees:
    """Reads `parallelism`, such as "TP8xDP3", "PP16" or "TP8xEP8".  Raises Unpredictable."""
    cell = text(row, "parallelism").upper()
    names = {"TP": "tensor", "PP": "pipeline", "DP": "data", "EP": "expert"}
    given: dict[str, int] = {}
    for part in filter(None, re.split(r"[X×,\s]+", cell)):
        match = re.fullmatch(r"(TP|PP|DP|EP)=?(\d{1,5})", part)
        if not match or int(match[2]) < 1 or names[match[1]] in given:
            raise Unpredictable(f"parallelism must be like TP8xDP3, not {cell!r:.40}", "parallelism")
        given[names[match[1]]] = int(match[2])
    return RowDegrees(**given)


_DTYPES = {
    "fp32": DType.FP32,
    "float32": DType.FP32,
    "bf16": DType.BF16,
    "bfloat16": DType.BF16,
    "fp16": DType.FP16,
    "float16": DType.FP16,
    "f16": DType.FP16,
    "int8": DType.INT8,
    "s8": DType.INT8,
    "fp8": DType.FP8_E4M3,
    "f8e4m3": DType.FP8_E4M3,
    "fp8_e4m3": DType.FP8_E4M3,
    "f8e5m2": DType.FP8_E5M2,
    "fp8_e5m2": DType.FP8_E5M2,
}


def number_format(row: Raw) -> Format:
    """Reads `dtype`: a number format, with "+matmult-bf16" (matrix products in bf16, neuronx-cc's --auto-cast
    matmult) and "+w:int8" (weights stored so).  Raises Unpredictable.

    Values that are multiplied in a narrower format are stored in it, too.
    """
    cell = text(row, "dtype").lower()
    base, *options = cell.split("+")
    compute = _dtype(base or "bf16", cell)
    matmul = weights = None
    for option in options:
        if option.startswith("matmult-"):
            matmul = _dtype(option.removeprefix("matmult-"), cell)
        elif option.startswith("w:"):
            weights = _dtype(option.removeprefix("w:"), cell)
        else:
            raise Unpredictable(f"dtype {cell!r:.40} has an unknown part {option!r:.20}", "dtype")
    activations = matmul or compute
    stored = weights or activations
    if compute in {
        DType.INT8,
        DType.FP8_E4M3,
        DType.FP8_E5M2,
    }:  # narrow formats are kept in bf16 between the Ops
        compute = DType.BF16
    return Format(cell or "bf16", stored, activations, compute)


def _dtype(name: str, cell: str) -> DType:
    if name not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise Unpredictable(f"dtype {cell!r:.40} is not known; the formats are {known}", "dtype")
    return _DTYPES[name]
