"""Texts that are too long: refused before the time and the memory of encoding them whole."""

from __future__ import annotations

from collections.abc import Callable

from corepipe.serving.api.http.errors import invalid

LONG_TEXT = 16_384
"""Characters or tokens from which a thread does the work, so that other requests go on."""

Encode = Callable[[str], list[int]]
"""Encodes text as token ids.  Raises UserError for what is no text."""


def encode_text(text: str, field: str, most: int, encode: Encode) -> list[int]:
    """Returns token ids as `Service.encode`, in the calling thread."""
    check_length(text, field, most, encode)
    return encode(text)


def check_length(text: str, field: str, most: int, encode: Encode) -> None:
    """Refuses a text that is far too long, without the time and the 350 bytes a token to encode it whole.

    The text is encoded in pieces, which may split tokens: the whole has fewer tokens, but not half as many.
    Raises ApiError (400).
    """
    if len(text) <= max(most, LONG_TEXT):
        return
    count = 0
    for at in range(0, len(text), LONG_TEXT):
        count += len(encode(text[at : at + LONG_TEXT]))
        if count > 2 * most:
            message = (  # litellm knows a context that is exceeded by these words
                f"The text of {field}, {len(text)} characters, is longer than the model's context length: "
                f"it has more than the {most} tokens that fit."
            )
            raise invalid(message, field, "context_length_exceeded")
