"""Tables: one for each kind of objects that are kept, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A kind of objects.  name: never changes once things are stored under it.  value: the type of a row's
    value.  on_disk: each row has a file in the store's directory, which goes when the row goes."""

    name: str
    value: type[T]
    on_disk: bool = False

    def encoded(self, value: T) -> bytes:
        return msgspec.msgpack.encode(value)

    def decoded(self, data: bytes) -> T:
        return msgspec.msgpack.decode(data, type=self.value)


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """A row of a table.  tenant: the salt of its owner.  created, expires: seconds since 1970.  ended: it may
    be removed to make room; a row that is being worked on may not."""

    id: str
    tenant: str
    created: int
    expires: int
    ended: bool
    value: T


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list.  more: others follow."""

    rows: Sequence[Row[T]]
    more: bool
