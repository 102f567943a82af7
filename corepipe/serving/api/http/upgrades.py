"""Removes the offer of another protocol from a request; the server ignores such offers (RFC 9110, 7.8)."""

from __future__ import annotations

from collections.abc import Iterable

_OFFER = frozenset({b"upgrade", b"http2-settings"})


def without_offer(url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the head of the same POST without its Upgrade; header names are in lower case."""
    lines = [b"POST %b HTTP/%b" % (url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFER]
            lines.append(b"connection: " + b",".join(kept).strip())
        elif name not in _OFFER:
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])
