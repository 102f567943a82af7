"""Control tokens in chats: the template's are tokens, a client's text never becomes one.

A template renders a conversation to one string, in which `<|im_end|>` looks the same whoever wrote it. So
there are three steps. Where a client's text could spell a control token, wholly or with the text beside it,
the template gets that text in private characters (`client_text`). In the rendered string, control tokens are
then the template's own: they are replaced by secret names, and the client's characters are restored. That
string is encoded by a tokenizer which is the model's except for the names.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from corepipe.errors import UserError
from corepipe.models.text.client_text import PrivateCharacters, is_role

PRIVATE = range(0xF0000, 0xFF000, 0x1000)
"""Candidates for the base of `PrivateCharacters`, in Unicode's planes for private use."""
SHORTEST = 3
"""The least length of a token that counts as a control token because the template writes it."""

_LIKE_CONTROL = re.compile(r"<[|\uff5c].+[|\uff5c]>")
"""Matches `<|fim_prefix|>`; tokenizers do not flag all such tokens as special."""


class ControlTokens:
    """The control tokens of a tokenizer with a chat template.

    Control tokens are the special ones of its added tokens, those named like them (`<|...|>`), and those that
    the template writes (`<tool_call>`). Others are text: runs of spaces, tags of HTML.
    """

    def __init__(self, backend: Backend, template: str) -> None:
        self._backend = backend
        self._template = template
        added = backend.get_added_tokens_decoder()
        names = {number: token.content for number, token in added.items() if _is_control(token, template)}
        nonce = secrets.token_hex(8)
        self._marks = {name: f"\U0010fffd{nonce}:{number}\U0010fffd" for number, name in names.items()}
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._characters = "".join(sorted({one for name in names.values() for one in name if one.strip()}))
        self._fragments = _Fragments(names.values())
        self._marked = _renamed(backend, [added[number] for number in sorted(added)], self._marks)
        self._ids = {
            self._marked.token_to_id(self._marks.get(token.content, token.content)): number
            for number, token in added.items()
        }
        self._pieces = names.keys() - self._ids.keys() - _unknown_ids(backend)

    def guard(
        self, messages: Sequence[Mapping[str, object]], given: Mapping[str, object]
    ) -> PrivateCharacters | None:
        """Returns the characters to replace in messages and further variables; None: they spell no token.

        Raises UserError where there are no private characters left to replace them by.
        """
        if not self._fragments.possible(messages, given):
            return None
        texts = _texts([self._template, list(messages), dict(given)])
        used = {ord(one) for text in texts for one in text if ord(one) >= PRIVATE.start}
        for base in PRIVATE:
            if used.isdisjoint(range(base, base + len(self._characters))):
                return PrivateCharacters(self._characters, base)
        raise UserError("the messages have too many different characters of private use", "messages")

    def mark(self, rendered: str, guard: PrivateCharacters | None) -> str:
        """Returns the rendered text with secret names for control tokens, and clients' text restored."""
        marked = self._names.sub(lambda found: self._marks[found[0]], rendered)
        return marked if guard is None else marked.translate(guard.back)

    def encode(self, marked: str, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of what `mark` returned."""
        (found,) = self._marked.encode_batch_fast([marked], add_special_tokens=False)
        numbers = found.ids
        ids = [self._ids.get(number, number) for number in numbers]
        if not self._pieces.isdisjoint(numbers):
            ids = self._spelled(numbers)
        return self._framed(found, ids) if add_special_tokens else ids

    def _spelled(self, found: Sequence[int]) -> list[int]:
        """Returns the ids of `encode`, with control tokens that the model merged from text split again."""
        ids: list[int] = []
        for number in found:
            if number in self._pieces:
                name = self._backend.id_to_token(number) or ""
                ids += [piece.id for one in name for piece in self._backend.model.tokenize(one)]
            else:
                ids.append(self._ids.get(number, number))
        return ids

    def _framed(self, found: Encoding, ids: list[int]) -> list[int]:
        """Returns the ids with the tokens that the tokenizer puts around a text."""
        framed = self._backend.post_process(found, None, add_special_tokens=True)
        at = [place for place, put in enumerate(framed.special_tokens_mask) if not put]
        start, end = (at[0], at[-1] + 1) if at else (len(framed.ids), len(framed.ids))
        return [*framed.ids[:start], *ids, *framed.ids[end:]]


class _Fragments:
    """Finds texts that may spell a control token: they contain all of it, or a part at an edge."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = sorted({name.lower() for name in names}, key=len, reverse=True)  # templates may lower texts
        self._within = re.compile("|".join(map(re.escape, lower)) or "(?!)")
        self._longest = len(lower[0]) if lower else 0
        self._all = "\n".join(lower)
        self._starts = {name[:at] for name in lower for at in range(1, len(name))}
        self._ends = {name[at:] for name in lower for at in range(1, len(name))}

    def possible(self, messages: Sequence[Mapping[str, object]], given: Mapping[str, object]) -> bool:
        """Tells whether to replace characters: always for texts beside roles and plain contents."""
        return any(map(_is_text, given.values())) or any(
            self._spells(value) if name == "content" and isinstance(value, str) else _is_text(value)
            for message in messages
            for name, value in message.items()
            if not is_role(name, value)
        )

    def _spells(self, text: str) -> bool:
        lower = text.strip().lower()
        return (
            self._within.search(lower) is not None
            or any(
                lower[:size] in self._ends or lower[-size:] in self._starts
                for size in range(1, self._longest)
            )
            or (0 < len(lower) < self._longest and lower in self._all)
        )


def _is_text(value: object) -> bool:
    return not (value is None or isinstance(value, int | float))


def _texts(value: object) -> Iterator[str]:
    """Yields all texts of a JSON value, including names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _is_control(token: AddedToken, template: str) -> bool:
    name = token.content
    written = len(name) >= SHORTEST and not name.isalnum() and name in template
    return bool(name.strip()) and (token.special or written or _LIKE_CONTROL.fullmatch(name) is not None)


def _unknown_ids(backend: Backend) -> set[int]:
    """Returns the ids that a model gives a character that no vocabulary has."""
    try:
        return {piece.id for piece in backend.model.tokenize("\U0010fffe")}
    except Exception:  # the library's own bare exception: there is no unknown token
        return set()


def _renamed(backend: Backend, added: Iterable[AddedToken], names: Mapping[str, str]) -> Backend:
    """Returns a tokenizer with the same parts, whose added tokens have other names and maybe other ids."""
    renamed = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(backend, part) is not None:
            setattr(renamed, part, getattr(backend, part))
    renamed.add_tokens(_fillers(backend, nonce=secrets.token_hex(8)))
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    renamed.add_tokens(
        [
            AddedToken(
                names.get(token.content, token.content), **{flag: getattr(token, flag) for flag in flags}
            )
            for token in added
        ]
    )
    return renamed


def _fillers(backend: Backend, nonce: str) -> list[AddedToken]:
    """Returns tokens that nothing matches, for the unused ids of a vocabulary with gaps."""
    ids = backend.get_vocab(with_added_tokens=False).values()
    beyond = max(ids, default=-1) + 1 - len(ids)
    return [AddedToken(f"\U0010fffd{nonce}-{number}\U0010fffd", normalized=False) for number in range(beyond)]
