"""What clients said, as a chat template sees it: in its output their characters can be told from its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_PLAIN_NAME = re.compile(r"[\w .-]*")


def _escaped(text: str, *, ensure_ascii: bool) -> str:
    """As it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]


Table = Mapping[int, int]
"""Code points to code points, as `str.translate` takes them."""


class Guard(msgspec.Struct, frozen=True):
    """An exchange of each of `characters` for a private one, from the code point `base` on, and back.

    An exchanged text is as long as before and its white space is where it was, so that a template does with
    it what it would have done.
    """

    characters: str
    base: int

    @property
    def there(self) -> Table:
        return {ord(one): self.base + at for at, one in enumerate(self.characters)}

    @property
    def back(self) -> Table:
        return {private: plain for plain, private in self.there.items()}

    def escaped(self, text: str, *, ensure_ascii: bool) -> str:
        """JSON of exchanged texts as it is of what they say: a quote among them does not end its string."""
        there, back = self.there, self.back
        escapes = {
            private: _escaped(chr(plain), ensure_ascii=ensure_ascii).translate(there)
            for private, plain in back.items()
        }
        if ensure_ascii:
            others = {one for one in text if one > "~" and ord(one) not in escapes}
            escapes |= {ord(one): _escaped(one, ensure_ascii=True) for one in others}
        return text.translate(escapes)


def guarded(value: object, table: Table) -> object:
    """A JSON value with its texts exchanged; not its roles and plain names, which a template looks up."""
    if isinstance(value, str):
        return ClientText.of(value.translate(table), table)
    if isinstance(value, dict):
        return {
            _name(key, table): one if is_role(key, one) else guarded(one, table) for key, one in value.items()
        }
    return [guarded(one, table) for one in value] if isinstance(value, list | tuple) else value


def is_role(key: object, value: object) -> bool:
    """Whether it is a role as templates know them, which they write into the middle of control tokens."""
    return key == "role" and isinstance(value, str) and value.isidentifier()


def _name(key: object, table: Table) -> object:
    return key.translate(table) if isinstance(key, str) and not _PLAIN_NAME.fullmatch(key) else key


class ClientText(str):
    """An exchanged text; what a template compares it with, seeks in it or cuts it by is exchanged, too.

    Where an expression loses the class, as joining it to the template's own words does, the private
    characters remain.
    """

    _table: Table

    @classmethod
    def of(cls, text: str, table: Table) -> ClientText:
        """`text` has been exchanged by `table`."""
        made = cls(text)
        made._table = table
        return made

    def there(self, value: object) -> object:
        """A template's own words in terms of this text."""
        if isinstance(value, tuple):
            return tuple(map(self.there, value))
        return value.translate(self._table) if type(value) is str else value

    def alike(self, value: object) -> object:
        """What a method of `str` returned, with its texts of this class."""
        if isinstance(value, list | tuple):
            return type(value)(map(self.alike, value))
        return self.of(value, self._table) if type(value) is str else value

    def __str__(self) -> str:
        return self

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, self.there(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _in_its_terms(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(self: ClientText, *given: object, **named: object) -> object:
        words = {name: self.there(value) for name, value in named.items()}
        return self.alike(method(self, *map(self.there, given), **words))

    return called


for _method in (
    *("__contains__", "__getitem__", "count", "endswith", "find", "index", "partition", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "split", "splitlines"),
    *("startswith", "strip", "lstrip", "rstrip"),
):
    setattr(ClientText, _method, _in_its_terms(getattr(str, _method)))
