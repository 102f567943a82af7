"""Rules for every test: none fails because the machine is busy, or in another order.

Also the fixture that watches a server while it is attacked.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from httpx._transports import default as httpx_default
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.attacks import Watch
from tests.computed import folders
from tests.servers import PATIENCE_SECONDS, Served
from tests.spent import ORDER, Spent

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Hypothesis would also draw the constants of all modules of the project that happen to be imported, which
# makes a test's inputs depend on the tests before it in the process.  Its seed is in pyproject.toml.
providers._get_local_constants = lambda: providers._local_constants

for part in ("connect", "read", "write", "pool"):  # where httpx gives a server five seconds
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, PATIENCE_SECONDS)

# Each client, so each `httpx.get`, would read all authorities that this machine trusts: 20 ms.
httpx_default.create_ssl_context = functools.cache(httpx_default.create_ssl_context)

# pytest-xdist tells its workers how wide the terminal is, and commands would break lines that go into pipes.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Shells leave SIGINT ignored in what they run in the background, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Has each run tell its processor time."""
    config.pluginmanager.register(Spent(), "spent")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, each whole, so that no worker ends with one of them alone.

    pytest-xdist would begin with those of the most tests; `--no-loadscope-reorder` leaves them so.
    """
    places = {name: number for number, name in enumerate(ORDER.read_text().splitlines())}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small random model of a computed family, by its name."""
    return folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def watching(server: Served, request: pytest.FixtureRequest) -> Iterator[Watch]:
    """The `server` of a module, which names its KEY and its GOLDEN request where it has its own."""
    key = getattr(request.module, "KEY", "")
    golden = getattr(request.module, "GOLDEN", Watch.golden)
    with closing(Watch(server, key, golden=golden)) as watch:
        yield watch


@pytest.fixture
def watch(watching: Watch) -> Iterator[Watch]:
    """Gives a case its server; the invariants are checked after it."""
    yield watching
    watching.check()
