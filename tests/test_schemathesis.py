"""Requests made up from the OpenAPI document: no 5xx, no status, type or shape that it does not describe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import tools
from tests.servers import TINY, Served, served

SCHEMATHESIS = "schemathesis==4.32.5"
KEY = "sk-made-up"
NOT_PROMISED = "positive_data_acceptance"
"""A document cannot say that prompt and answer must fit the context."""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY, "--served-model-name", "tiny", "--api-key", KEY, "--threads", 1) as running:
        yield running


def made_up(server: Served, folder: Path, *options: str) -> int:
    """Cases that were tried; fails with what was found."""
    packages = tools.wanted(SCHEMATHESIS)
    command = [sys.executable, packages / "bin" / "schemathesis", "run", f"{server.url}/openapi.json"]
    settings = ["--header", f"Authorization: Bearer {KEY}", "--exclude-checks", NOT_PROMISED, "--no-color"]
    settings += ["--warnings", "off", "--request-timeout", "60", "--seed", "20261121", *options]
    done = tools.run([*command, *settings], tools.environment(packages), cwd=folder, seconds=3600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert found is not None, done.stdout
    assert "Traceback" not in "".join(server.stderr)
    return int(found[1])


def answered(server: Served) -> int:
    """Requests with a 2xx, by route, of the two that generate."""
    headers = {"Authorization": f"Bearer {KEY}"}
    text = server.get("/metrics", headers=headers).text
    rows = re.findall(r'http_requests_total{handler="/v1/([^"]+)",method="POST",status="2xx"} (\S+)', text)
    assert {path for path, _ in rows} == {"completions", "chat/completions"}
    return min(int(float(count)) for _, count in rows)


def test_what_is_made_up_from_the_document_meets_it(server: Served, tmp_path: Path) -> None:
    assert made_up(server, tmp_path, "--phases", "fuzzing", "--max-examples", "70") >= 300
    assert answered(server) > 0


@pytest.mark.slow
def test_ten_thousand_cases(server: Served, tmp_path: Path) -> None:
    tried = made_up(server, tmp_path, "--phases", "coverage,fuzzing,stateful", "--max-examples", "1100")
    assert tried >= 10_000
    assert answered(server) > 100
