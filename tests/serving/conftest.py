"""Fixtures of the server's tests: a scripted engine behind the real app; and tests that are coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator

import openai
import pytest

from corepipe.models.tasks import TaskInfo
from tests.engine.encoder_support import bert, computing
from tests.servers import PATIENCE_SECONDS
from tests.serving.http_support import FakeEngine, Serve, openai_client, running


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_SECONDS))
    return True


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with running(engine) as where:
        yield where


@pytest.fixture(scope="module")
def module_client(url: str) -> Iterator[openai.OpenAI]:
    with openai_client(url) as client:
        yield client


@pytest.fixture
def client(module_client: openai.OpenAI, engine: FakeEngine) -> openai.OpenAI:
    return module_client


@pytest.fixture(autouse=True)
def _anew(request: pytest.FixtureRequest) -> None:
    """Makes a test's engine forget the tests before."""
    if "engine" in request.fixturenames and isinstance(one := request.getfixturevalue("engine"), FakeEngine):
        one.begin_anew()


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Makes a server for each task, started at its first request; its engine forgets the tests before."""
    with contextlib.ExitStack() as open_ones:
        found: dict[int, tuple[str, FakeEngine]] = {}

        def served(task: TaskInfo) -> tuple[str, FakeEngine]:
            if id(task) not in found:
                engine = FakeEngine(computing(task))
                url = open_ones.enter_context(running(engine, text=bert(), task=task))
                found[id(task)] = (url, engine)
            found[id(task)][1].begin_anew()
            return found[id(task)]

        yield served
