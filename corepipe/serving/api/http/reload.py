"""Reloads API keys and certificate while the server runs; if a file is wrong, the old ones stay in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from corepipe.errors import UserError
from corepipe.serving.api.http.tenants import Tenants
from corepipe.serving.api.http.tls import Certificate
from corepipe.serving.config import ServerConfig
from corepipe.serving.keys import read_keys


class FileReload:
    """Reads the key file and the certificate again; requests and connections under way go on."""

    def __init__(self, config: ServerConfig, tenants: Tenants, certificate: Certificate | None) -> None:
        self._config = config
        self._tenants = tenants
        self._certificate = certificate
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Starts a reload as a task of the event loop."""
        task = asyncio.ensure_future(self.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Reloads the files; reloads run one by one, so that the newest files are used in the end."""
        async with self._turn:
            if self._config.api_key_file is not None:
                await _reload("API keys", self._reload_keys)
            if self._certificate is not None:
                await _reload("certificate", self._certificate.reload)
            if self._config.api_key_file is None and self._certificate is None:
                _log().warning("nothing to reload: neither --api-key-file nor --ssl-certfile is set")

    async def _reload_keys(self) -> str:
        keys = await asyncio.to_thread(read_keys, self._config.api_keys, self._config.api_key_file)
        self._tenants.replace(keys)
        return f"{len(self._tenants)} keys now"


async def _reload(what: str, reload: Callable[[], Awaitable[str]]) -> None:
    try:
        _log().warning("%s reloaded: %s", what, await reload())
    except UserError as error:
        _log().error("%s not reloaded, the old one stays in use: %s", what, error.message)


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
