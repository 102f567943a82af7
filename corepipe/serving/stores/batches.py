"""Batches: requests in a file of their client, and where they stand."""

from __future__ import annotations

from typing import Literal

import msgspec

from corepipe.serving.stores.table import Table

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class BatchFault(msgspec.Struct, frozen=True):
    """The reason why a batch failed, and the line of its input that it is about."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch.  output_file, error_file: the ids of the files that its results go to; made when it starts.

    shown_output, shown_error: those that have results, once it has ended.  times: when it came into a status,
    by the status; it expires at `expires_at`.  output_seconds: the time that its files are kept.
    """

    endpoint: str
    input_file: str
    status: BatchStatus
    expires_at: int
    times: dict[str, int]
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    output_file: str = ""
    error_file: str = ""
    shown_output: str | None = None
    shown_error: str | None = None
    fault: BatchFault | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0


BATCHES = Table("batches", StoredBatch)
