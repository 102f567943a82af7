"""The block table of a request: the KV blocks of its positions, as the executor takes it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from corepipe.engine.batch.sampling import Ids
from corepipe.scheduler.request import Request

INT32 = 4
"""Bytes."""


@dataclass(slots=True)
class BlockTable:
    """A request's block table as int32 bytes, which a step joins with others without touching each entry."""

    data: bytearray = field(default_factory=bytearray)
    preemptions: int = 0

    def follow(self, request: Request) -> bytearray:
        """Adds the request's new blocks to the table; between preemptions blocks are only added, and entries
        of blocks that have been taken away since are not read any more."""
        if self.preemptions != request.num_preemptions:
            self.preemptions = request.num_preemptions
            self.data.clear()
        known = len(self.data) // INT32
        if known < len(request.block_ids):
            self.data += array("i", request.block_ids[known:]).tobytes()
        return self.data


def join_tables(tables: Sequence[bytearray]) -> Ids:
    """Joins the tables to [S, B], B the most blocks that one of the requests has."""
    width = max(map(len, tables))
    joined = bytearray().join([table.ljust(width, b"\0") for table in tables])
    return np.frombuffer(joined, np.int32).reshape(len(tables), -1)
