"""A pytest plugin: one corepipe server for the session, with a model or with recorded answers.

Its fixtures are `corepipe_url`, `corepipe_model` and `openai_client`.  Nothing is started for tests that use
none of them, and nothing of the server is imported here: it is a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from openai import OpenAI

DEFAULT_MODEL = "smollm2-135m-instruct"
PATIENCE_SECONDS = 900.0
"""The time for a server to be ready: it may have to download a model first.  One that ends is not awaited."""
END_SECONDS = 60.0
TICK_SECONDS = 0.02
LOG_SHOWN = 4000
"""The characters at the end of a log that a failure shows."""

_ADDRESS = re.compile(r"(https?://\S+/v1)\b")
_DIES_WITH_US = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execv(sys.executable, [sys.executable, "-m", "corepipe", *sys.argv[1:]])
"""
"""Starts the server, which on Linux ends with the tests' process, however that ends (PR_SET_PDEATHSIG)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("corepipe", "a corepipe server (fixtures corepipe_url, openai_client)")
    group.addoption("--corepipe-model", metavar="MODEL", help="model to serve, as for `corepipe serve`")
    group.addoption("--corepipe-record", metavar="DIR", help="record requests and answers in this directory")
    group.addoption("--corepipe-replay", metavar="DIR", help="answer from recordings; no model is loaded")
    parser.addini("corepipe_model", "as --corepipe-model", default=DEFAULT_MODEL)
    parser.addini("corepipe_record", "as --corepipe-record, from the root directory")
    parser.addini("corepipe_replay", "as --corepipe-replay, from the root directory")
    parser.addini("corepipe_args", "further flags of `corepipe serve`", type="args")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("corepipe_record") and config.getoption("corepipe_replay"):
        raise pytest.UsageError("--corepipe-record and --corepipe-replay: choose one")


@pytest.fixture(scope="session")
def corepipe_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL for clients of the OpenAI API, with its /v1, of a server that is ready."""
    with _served(_flags(request.config), tmp_path_factory.mktemp("corepipe") / "server.log") as url:
        yield url


@pytest.fixture(scope="session")
def corepipe_model(request: pytest.FixtureRequest) -> str:
    """The model's name for requests; for a path its last part, which is the same on every machine."""
    model = _model(request.config)
    return Path(model).resolve().name if Path(model).exists() else model


@pytest.fixture(scope="session")
def openai_client(request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """A client of the session's server, which uses no proxy."""
    try:
        import openai  # noqa: PLC0415 -- optional
    except ImportError:
        pytest.fail("the fixture openai_client needs the package openai: pip install openai", pytrace=False)
    url = request.getfixturevalue("corepipe_url")  # not before: a server may take minutes
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=url, api_key="corepipe", http_client=http) as client:
        yield client


def _model(config: pytest.Config) -> str:
    return str(config.getoption("corepipe_model") or config.getini("corepipe_model"))


def _flags(config: pytest.Config) -> list[str]:
    model, cassettes, more = _model(config), _cassettes(config), config.getini("corepipe_args")
    if cassettes[:1] == ["--replay"] and model == DEFAULT_MODEL:
        return [*cassettes, *more]
    path = Path(model)
    named = ["--served-model-name", path.resolve().name] if path.exists() else []
    return [model, *named, *cassettes, *more]


def _cassettes(config: pytest.Config) -> list[str]:
    """Returns the flags of cassettes from the command line, else from the settings."""
    here, root = config.invocation_params.dir, config.rootpath
    for folder, said in ((here, config.getoption), (root, config.getini)):
        for flag in ("record", "replay"):
            if given := said(f"corepipe_{flag}"):
                return [f"--{flag}", str(folder / str(given))]
    return []


@contextmanager
def _served(flags: list[str], log: Path) -> Iterator[str]:
    """Runs a server with a session of its own, since we handle Ctrl-C; yields its URL when it is ready."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    command = [sys.executable, "-c", _DIES_WITH_US, "serve", "--port", "0", "--seed", "0", *flags]
    with log.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 -- our own interpreter, and flags of the user
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
    try:
        yield _ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """Waits for the server; fails the tests with the end of its log where it ends or takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        found = _ADDRESS.search(log.read_text(errors="replace"))
        if found and _is_healthy(found[1].removesuffix("/v1")):
            return found[1]
        time.sleep(TICK_SECONDS)
    code = process.poll()
    what = "was not ready in time" if code is None else f"ended with exit code {code}"
    pytest.fail(
        f"the corepipe server {what}; its log:\n{log.read_text(errors='replace')[-LOG_SHOWN:]}", pytrace=False
    )


def _is_healthy(url: str) -> bool:
    from urllib.request import ProxyHandler, build_opener  # noqa: PLC0415 -- only if one is started

    with suppress(OSError), build_opener(ProxyHandler({})).open(f"{url}/health", timeout=10) as answer:
        return bool(answer.status == 200)
    return False
