"""API keys: reads them, and finds the owner of a key that a client presents."""

from __future__ import annotations

import hashlib
import hmac
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from corepipe.errors import UserError

MAX_FILE = 1024 * 1024
"""Characters of a key file that are read."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def digest_of(entry: str) -> bytes:
    """Returns the SHA-256 of a key, or that of a `sha256:` entry.  Raises ValueError for a malformed one."""
    if not entry.startswith("sha256:"):
        return hashlib.sha256(entry.encode()).digest()
    found = _DIGEST.fullmatch(entry)
    if found is None:
        raise ValueError("sha256: must be followed by the 64 lower-case hex digits of the key's SHA-256")
    return bytes.fromhex(found[1])


def read_key_file(path: Path) -> list[str]:
    """Reads the entries of a key file, one or several a line; a line that begins with # is a comment.

    Raises UserError if the file cannot be read, holds no key or a malformed one, or everyone may read it.
    """
    try:
        mode = path.stat().st_mode
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UserError(f"--api-key-file {path}: {reason}", "api_key_file") from error
    if mode & stat.S_IROTH:
        message = f"--api-key-file {path}: everyone may read it (mode {mode & 0o777:04o}); chmod 0640 {path}"
        raise UserError(message, "api_key_file")
    entries = [key for line in text.splitlines() if not line.startswith("#") for key in line.split()]
    if not entries:
        raise UserError(f"--api-key-file {path}: holds no key", "api_key_file")
    try:
        for entry in entries:
            digest_of(entry)
    except ValueError as error:
        raise UserError(f"--api-key-file {path}: {error}", "api_key_file") from error
    return entries


def read_keys(given: Iterable[str], file: Path | None) -> list[str]:
    """Returns the given keys and those in the file.  Raises UserError as `read_key_file`."""
    return [*given, *([] if file is None else read_key_file(file))]


class KeyRing:
    """API keys, kept as digests; a look-up takes the same time for every key.  Empty entries are left out."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.digests = [digest_of(entry) for entry in dict.fromkeys(entries) if entry]

    def find(self, presented: bytes) -> int | None:
        """Returns the index in `digests` of a presented key, or None."""
        digest = hashlib.sha256(presented).digest()
        found = None
        for number, one in enumerate(self.digests):
            if hmac.compare_digest(one, digest):
                found = number
        return found


def bearer(authorization: bytes) -> bytes | None:
    """Returns the key in an Authorization header of the scheme `Bearer`, or None."""
    scheme, _, presented = authorization.partition(b" ")
    return presented.strip() if scheme.lower() == b"bearer" else None
