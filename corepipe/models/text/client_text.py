"""Clients' text as a chat template sees it: in the output it can be told from the template's own text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

import msgspec

_PLAIN_NAME = re.compile(r"[\w .-]*")


def _escaped(text: str, *, ensure_ascii: bool) -> str:
    """Returns the text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]


Table = Mapping[int, int]
"""A map of code points to code points, as `str.translate` takes it."""


class PrivateCharacters(msgspec.Struct, frozen=True):
    """Replaces each of `characters` by a private one, from the code point `base` on, and back.

    A replaced text has the same length and the same white space, so that a template handles it like the
    original.
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
        """Returns the JSON of replaced texts as that of the originals: a quote in them ends no string."""
        there, back = self.there, self.back
        escapes = {
            private: _escaped(chr(plain), ensure_ascii=ensure_ascii).translate(there)
            for private, plain in back.items()
        }
        if ensure_ascii:
            others = {one for one in text if one > "~" and ord(one) not in escapes}
            escapes |= {ord(one): _escaped(one, ensure_ascii=True) for one in others}
        return text.translate(escapes)


class ClientTextExchange:
    """The replacement of characters in one rendering."""

    def __init__(self, guard: PrivateCharacters) -> None:
        self.there, self.back = guard.there, guard.back

    def exchanged(self, value: object) -> object:
        """Returns a JSON value with its texts replaced, except roles and plain names, which are looked up."""
        if isinstance(value, str):
            return ClientText.of(value.translate(self.there), self)
        if isinstance(value, dict):
            return {
                self._name(key): one if is_role(key, one) else self.exchanged(one)
                for key, one in value.items()
            }
        return [self.exchanged(one) for one in value] if isinstance(value, list | tuple) else value

    def _name(self, key: object) -> object:
        plain = not isinstance(key, str) or _PLAIN_NAME.fullmatch(key)
        return key if plain else self.exchanged(key)

    def plain(self, value: Any) -> Any:  # noqa: ANN401 -- as the methods of str take it
        """Returns a text, or several, with the original characters."""
        if isinstance(value, tuple):
            return tuple(map(self.plain, value))
        return value.translate(self.back) if isinstance(value, str) else value

    def kept(self, value: object) -> object:
        """Returns the value of an expression: a text with private characters becomes a `ClientText`."""
        if type(value) not in (str, ClientText) or hasattr(value, "_exchange"):
            return value
        text = "".join(value)  # type: ignore[arg-type]
        mixed = not self.back.keys().isdisjoint(map(ord, set(text)))
        return ClientText.of(text, self) if mixed else text


def is_role(key: object, value: object) -> bool:
    """Tells whether the value is a role as templates know them, which they write into control tokens."""
    return key == "role" and isinstance(value, str) and value.isidentifier()


class ClientText(str):
    """A text with private characters, alone or among a template's own, which behaves like the original.

    Texts that it is compared with, or split by, match in either form; its parts keep their characters.
    """

    _exchange: ClientTextExchange

    @classmethod
    def of(cls, text: str, exchange: ClientTextExchange) -> ClientText:
        """Makes a ClientText of a text that has been replaced, or of a part of one."""
        made = cls(text)
        made._exchange = exchange
        return made

    @property
    def _plain(self) -> str:
        """The original text."""
        said: str = self._exchange.plain(self)
        return said

    def _like(self, text: str) -> ClientText:
        return ClientText.of(text, self._exchange)

    def _pieces(self, plain: Iterable[str], gap: int = 0) -> list[str]:
        """Returns the parts of this text that match these plain ones, `gap` characters apart."""
        found, at = list[str](), 0
        for piece in plain:
            found.append(self[at : at + len(piece)])
            at += len(piece) + gap
        return found

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self._plain)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getitem__(self, key: SupportsIndex | slice) -> ClientText:
        return self._like(str.__getitem__(self, key))

    def __iter__(self) -> Iterator[str]:
        return map(self._like, str.__iter__(self))

    def __add__(self, other: str) -> ClientText:
        return self._like(str.__add__(self, other))

    def __radd__(self, other: str) -> ClientText:
        return self._like(str.__add__(other, self))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        if sep is None:
            return [self._like(piece) for piece in str.split(self, None, maxsplit)]
        return self._pieces(self._plain.split(self._exchange.plain(sep), maxsplit), len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        if sep is None:
            return [self._like(piece) for piece in str.rsplit(self, None, maxsplit)]
        return self._pieces(self._plain.rsplit(self._exchange.plain(sep), maxsplit), len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return [self._like(line) for line in str.splitlines(self, keepends)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, after = self._pieces(self._plain.partition(self._exchange.plain(sep)))
        return before, found, after

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, after = self._pieces(self._plain.rpartition(self._exchange.plain(sep)))
        return before, found, after

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> ClientText:
        if not old:
            return self._like(str.replace(self, old, new, count))
        return self._like(str(new).join(self.split(old, count)))

    def lstrip(self, chars: str | None = None) -> ClientText:
        return self[len(self) - len(self._plain.lstrip(self._exchange.plain(chars))) :]

    def rstrip(self, chars: str | None = None) -> ClientText:
        return self[: len(self._plain.rstrip(self._exchange.plain(chars)))]

    def strip(self, chars: str | None = None) -> ClientText:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> ClientText:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> ClientText:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def _recased(self, name: str) -> ClientText:
        """Applies a method of `str` that changes case; all is a client's where the length changes."""
        there, made = self._exchange.there, getattr(self._plain, name)()
        if len(made) != len(self):
            return self._like(made.translate(there))
        pairs = zip(str.__iter__(self), self._plain, made, strict=True)
        return self._like("".join(new if own == was else new.translate(there) for own, was, new in pairs))


def _judging(name: str) -> Callable[..., Any]:
    def judged(self: ClientText, *given: object) -> object:
        plain = self._exchange.plain
        return getattr(self._plain, name)(*map(plain, given))

    return judged


def _recasing(name: str) -> Callable[[ClientText], ClientText]:
    return lambda self: self._recased(name)


for _name in (
    *("__contains__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "count", "endswith", "find", "index"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isupper"),
    *("rfind", "rindex", "startswith"),
):
    setattr(ClientText, _name, _judging(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(ClientText, _name, _recasing(_name))
