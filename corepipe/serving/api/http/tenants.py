"""Tenants: each API key has its own part of the prefix cache and its own quota."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from starlette.types import Scope

from corepipe.scheduler.request import BACKGROUND
from corepipe.serving.api.http.errors import ApiError, invalid
from corepipe.serving.keys import KeyRing

SCOPE_KEY = "corepipe.tenant"
"""The key under which RequestGuard puts the Tenant into the ASGI scope."""


class Quota:
    """The quota of one key: `requests` in flight and `tokens` a minute (None: any number).

    Tokens are a bucket that holds a minute's worth and refills evenly.  A prompt is charged when it is
    submitted, an answer when it ends; the bucket's level may become negative then, and new requests are
    refused until it is positive.  So no answer is cut, and over minutes the rate holds exactly.
    """

    def __init__(
        self, requests: int | None, tokens: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = requests
        self._tokens = tokens
        self._clock = clock
        self._in_flight = 0
        self._level = float(tokens or 0)
        self._seen = clock()

    @contextmanager
    def holding(self, count: int = 1) -> Iterator[None]:
        """Counts requests as in flight.  Raises ApiError (429) if the key has too many, or no tokens left."""
        if self._requests is not None and self._in_flight + count > self._requests:
            raise _refused(f"This key has {self._in_flight} of {self._requests} requests in flight.", 1)
        if self._tokens is not None and self._refilled() <= 0:
            message = f"This key has used its {self._tokens} tokens a minute."
            raise _refused(message, self._seconds_until(1))
        self._in_flight += count
        try:
            yield
        finally:
            self._in_flight -= count

    def of_tokens(self) -> Quota | None:
        """Returns another quota of as many tokens, for any number of requests; None without such a limit."""
        return None if self._tokens is None else Quota(None, self._tokens, self._clock)

    def charge(self, tokens: int) -> None:
        """Charges the tokens that a request used."""
        if self._tokens is not None:
            self._level = self._refilled() - tokens

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns headers with what is left, under OpenAI's names.  Requests have no reset time."""
        left: list[tuple[str, object]] = []
        if self._requests is not None:
            left += [
                ("limit-requests", self._requests),
                ("remaining-requests", self._requests - self._in_flight),
            ]
        if self._tokens is not None:
            left += [("limit-tokens", self._tokens), ("remaining-tokens", max(0, int(self._refilled())))]
            left += [("reset-tokens", _duration(self._seconds_until(self._tokens)))]
        return [(f"x-ratelimit-{name}".encode(), str(value).encode()) for name, value in left]

    def most(self) -> int | None:
        """Returns the requests that the key may have in flight; None: any number."""
        return self._requests

    def _refilled(self) -> float:
        now, full = self._clock(), float(self._tokens or 0)
        self._level = min(full, self._level + (now - self._seen) * full / 60)
        self._seen = now
        return self._level

    def _seconds_until(self, level: float) -> float:
        return max(0.0, (level - self._refilled()) * 60 / float(self._tokens or 1))


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of one API key.  `salt` separates its prefix-cache entries; all salts have one length.

    turn: the name under which its requests take turns in the queue; empty if there is only one key.
    background: its requests are lines of batches, which run while there is no other.
    seed: for the draws of a request that has none.
    """

    salt: str = ""
    quota: Quota | None = None
    turn: str = ""
    background: bool = False
    seed: int | None = None

    def for_lines(self) -> Tenant:
        """Returns the tenant for its lines in batches: they may use as many tokens a minute as its other
        requests, besides these, and are no requests in flight."""
        quota = None if self.quota is None else self.quota.of_tokens()
        return replace(self, quota=quota, background=True)

    def priority(self, asked: int) -> int:
        """Returns the priority of a request that asks for this one."""
        return BACKGROUND if self.background else asked

    @property
    def known(self) -> bool:
        """True if the request came with a key."""
        return bool(self.salt)

    def check(self, sequences: int, priority: int) -> None:
        """Raises ApiError (400) for what no request with this key may ever have."""
        most = None if self.quota is None else self.quota.most()
        if most is not None and sequences > most:
            raise invalid(f"prompts times n is at most {most} for a key of this server.", "n")
        if self.known and priority < 0:
            message = "priority must be 0 or more on a server with API keys."
            raise invalid(message, "priority")


ANYONE = Tenant()
"""The tenant of all requests to a server without keys."""


def tenant_of(scope: Scope) -> Tenant:
    """Returns the tenant of a request."""
    tenant: Tenant = scope.get(SCOPE_KEY, ANYONE)
    return tenant


def make_tenants(digests: Sequence[bytes], requests: int | None, tokens: int | None) -> list[Tenant]:
    """Makes the tenants of the keys with these digests, each with a quota of its own."""
    limited = requests is not None or tokens is not None
    tenants = []
    for digest in digests:
        salt = hashlib.sha256(b"prefix cache of " + digest).hexdigest()[:32]
        quota = Quota(requests, tokens) if limited else None
        tenants.append(Tenant(salt, quota, salt if len(digests) > 1 else ""))
    return tenants


class Tenants:
    """The tenants of a server.  A key that stays at a reload keeps the state of its quota."""

    def __init__(
        self, entries: Iterable[str], requests: int | None = None, tokens: int | None = None
    ) -> None:
        self._limits = (requests, tokens)
        self._tenants: list[Tenant] = []
        self.replace(entries)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    def replace(self, entries: Iterable[str]) -> None:
        """Replaces the keys by these."""
        quotas = {tenant.salt: tenant.quota for tenant in self._tenants}
        self._keys = KeyRing(entries)
        made = make_tenants(self._keys.digests, *self._limits)
        self._tenants = [replace(one, quota=quotas.get(one.salt, one.quota)) for one in made]

    def of_salt(self, salt: str) -> Tenant | None:
        """Returns the tenant with this salt, or None: there is no such key any more."""
        if not self._tenants and not salt:
            return ANYONE
        return next((one for one in self._tenants if one.salt == salt), None)

    def find(self, key: bytes) -> Tenant | None:
        """Returns the tenant of a key, or None."""
        number = self._keys.find(key)
        return None if number is None else self._tenants[number]


def _refused(message: str, seconds: float) -> ApiError:
    headers = {"retry-after": str(max(1, math.ceil(seconds)))}
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
