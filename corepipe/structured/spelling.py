"""The texts that a model's tokens can write: some vocabularies have no token for some bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

ALL_BYTES = frozenset(range(256))
LONGEST = 4
"""The most bytes of a character."""


class SpellingVocabulary(Protocol):
    """The interface of a tokenizer for this module."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class Spelling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The texts that a model's tokens can write.

    missing: bytes that are no token by themselves.  characters: characters with such bytes that are a token.
    absent: bytes that occur in no token.  added: ids of added tokens, which free text cannot hold.
    """

    missing: bytes = b""
    characters: str = ""
    absent: bytes = b""
    added: dict[str, int] = {}

    @classmethod
    def of(cls, vocabulary: SpellingVocabulary) -> Spelling:
        """Makes the spelling of a tokenizer from all of its tokens."""
        pieces = [vocabulary.token_bytes(token) for token in range(vocabulary.vocab_size)]
        missing = ALL_BYTES.difference(piece[0] for piece in pieces if len(piece) == 1)
        added = {text: token for text, token in vocabulary.added_tokens.items() if text.strip()}
        if not missing:
            return cls(added=added)
        absent = missing.difference(*pieces)
        short = {piece for piece in pieces if 1 < len(piece) <= LONGEST and not missing.isdisjoint(piece)}
        texts = (piece.decode(errors="replace") for piece in short)
        characters = "".join(sorted(text for text in texts if len(text) == 1 and text != "\ufffd"))
        return cls(bytes(sorted(missing)), characters, bytes(sorted(absent)), added)

    def unwritten(self, text: str) -> str:
        """Returns the first character of a text that no tokens write by themselves; "" where there is none.

        Such a character counts as one that cannot be written, even if a token has it together with others.
        """
        if not self.missing:
            return ""
        return next((char for char in text if not self._writes(char)), "")

    def _writes(self, char: str) -> bool:
        data = char.encode(errors="surrogatepass")
        return not any(byte in self.missing for byte in data) or char in self.characters


ANY_TEXT = Spelling()
"""The spelling of tokens that can write every text."""
