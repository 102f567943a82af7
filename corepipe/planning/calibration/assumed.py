"""Assumptions for values that published rows do not state; the prediction reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from corepipe.planning.calibration.rows import Raw, text

COLUMN = "assumed"
"""Column in which a completed row holds its assumption."""

LLMPERF = "serving-tgi"
"""The task whose loads were made with llmperf."""

MOST_DOUBLED = 1024

_SERVER = (
    "instance", "model", "dtype", "parallelism", "batch_size", "input_len", "output_len", "seq_len", "sdk",
    "profile", "arrival", "metric", "percentile",
)  # fmt: skip


def completed(rows: Iterable[Raw]) -> Iterator[Raw]:
    """Yields the rows, with the users of loads that do not name theirs.

    Such loads come in series: 1, 2, 4, 8 ... users of one server, so that its n-th figure of a metric is that
    of the n-th load.
    """
    loads: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        if text(row, "task").lower() != LLMPERF or text(row, "users") or text(row, "rate"):
            yield row
            continue
        server = tuple(text(row, column) for column in _SERVER)
        users = 1 << loads[server]
        loads[server] += 1
        yield row if users > MOST_DOUBLED else {**row, "users": str(users), COLUMN: _reason(users)}


def _reason(users: int) -> str:
    return f"{users} users are assumed: rows of one server without users are taken as 1, 2, 4 ... of them"
