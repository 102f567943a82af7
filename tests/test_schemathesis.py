"""Requests made up from the OpenAPI document: no 5xx, no status, type or shape that it does not describe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import tools
from tests.engine.encoder_support import LABELS
from tests.servers import TINY, Served, served
from tests.tiny_encoders import write_bert

SCHEMATHESIS = "schemathesis==4.32.5"
KEY = "sk-made-up"
NOT_PROMISED = "positive_data_acceptance"
"""A document cannot say that prompt and answer must fit the context."""


OPTIONS = ("--api-key", KEY, "--threads", 1)
COMPLETIONS = "/v1/completions"
GENERATING = frozenset(
    {
        COMPLETIONS,
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
    }
)
OF_TEXTS = frozenset(
    {
        "/v1/embeddings",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v2/models/{model}/infer",
    }
)
"""The paths of requests about texts that generate nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY, "--served-model-name", "tiny", *OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Vectors and classes, so that every route has a model that answers it."""
    home = tmp_path_factory.mktemp("encoders")
    vectors = write_bert(home / "vectors")
    classes = write_bert(home / "classes", *LABELS, name="BertForSequenceClassification")
    with served(vectors, "--served-model-name", "tiny", "--also", f"classes={classes}", *OPTIONS) as running:
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


def answered(server: Served, routes: frozenset[str]) -> int:
    """Requests with a 2xx that each of these routes has had, one at least."""
    headers = {"Authorization": f"Bearer {KEY}"}
    text = server.get("/metrics", headers=headers).text
    row = r'http_requests_total{handler="([^"]+)",method="POST",status="2xx"} (\S+)'
    counts = {path: int(float(count)) for path, count in re.findall(row, text)}
    assert routes <= counts.keys(), routes - counts.keys()
    return min(counts[path] for path in routes)


def of_texts() -> list[str]:
    """Returns options with which schemathesis requests these routes only."""
    return [option for path in sorted(OF_TEXTS) for option in ("--include-path", path)]


def test_what_is_made_up_from_the_document_meets_it(server: Served, tmp_path: Path) -> None:
    """Most of the first of a kind are wrong, but for the document's examples; completions, which have none,
    take sixty until some are right."""
    phases = ("--phases", "examples,fuzzing", "--max-examples")
    tried = [
        made_up(server, tmp_path, *phases, str(count), *(which, COMPLETIONS))
        for count, which in ((60, "--include-path"), (8, "--exclude-path"))
    ]
    assert sum(tried) >= 180
    assert answered(server, GENERATING) > 0


def test_what_is_made_up_of_texts_meets_the_document(encoders: Served, tmp_path: Path) -> None:
    phases = ("--phases", "examples,fuzzing", "--max-examples", "8")
    assert made_up(encoders, tmp_path, *phases, *of_texts()) >= 70
    assert answered(encoders, OF_TEXTS) > 0


@pytest.mark.slow
def test_ten_thousand_cases(server: Served, tmp_path: Path) -> None:
    tried = made_up(server, tmp_path, "--phases", "coverage,fuzzing,stateful", "--max-examples", "1100")
    assert tried >= 10_000
    assert answered(server, GENERATING) > 50


@pytest.mark.slow
def test_ten_thousand_cases_of_texts(encoders: Served, tmp_path: Path) -> None:
    phases = ("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "1100")
    assert made_up(encoders, tmp_path, *phases) >= 10_000
    assert answered(encoders, OF_TEXTS) > 5  # the more fields a body may have, the fewer are right by chance
