"""The formats for scrapers: each has the same families and samples under the same names."""

from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from corepipe.engine.config import EngineConfig
from corepipe.serving.telemetry.by_model import joint_registry
from corepipe.serving.telemetry.exposition import render
from corepipe.serving.telemetry.neuron_metrics import NeuronMetrics
from corepipe.serving.telemetry.observer import Observer
from tests.servers import TINY, served
from tests.serving.http_support import READY, STATS

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OPENMETRICS, PLAIN = "application/openmetrics-text", "text/plain; version=0.0.4; charset=utf-8"
FORMATS = {
    "": PLAIN,
    "*/*": PLAIN,
    "application/json": PLAIN,
    "text/plain;version=0.0.4": PLAIN,
    "text/plain;version=1.0.0": "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
    **{
        f"{kind};version=1.0.0;escaping={asked}": f"{kind}; version=1.0.0; charset=utf-8; escaping={told}"
        for kind in ("text/plain", OPENMETRICS)
        for asked in ("allow-utf-8", "underscores", "dots", "values")
        for told in ("allow-utf-8" if asked == "allow-utf-8" else "underscores",)
    },
    OPENMETRICS: f"{OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=underscores",
    f"{OPENMETRICS}; version=0.0.1": f"{OPENMETRICS}; version=0.0.1; charset=utf-8",
    f"{OPENMETRICS}; version=9.9.9": PLAIN,
    f"{OPENMETRICS}; version=1.0.0;q=0.1,text/plain;version=0.0.4;q=0.9": PLAIN,
    PROMETHEUS_2: f"{OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=underscores",
    PROMETHEUS_3: f"{OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
}
"""The Accept header of a scraper -> the content type that it gets."""


@pytest.fixture(scope="module")
def url():
    with served(TINY, "--served-model-name", "tiny") as server:
        body = {"model": "tiny", "prompt": "a prompt", "max_tokens": 8, "ignore_eos": True}
        assert server.post("/v1/completions", json=body).status_code == 200
        yield server.url


def told(text, content_type):
    """Returns the type, help, and the names and labels of the samples of each family."""
    openmetrics = content_type.startswith("application/openmetrics-text")
    parse = parse_openmetrics if openmetrics else parse_text
    return {
        family.name: (
            family.type,
            family.documentation,
            sorted((sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples),
        )
        for family in parse(text)
    }


@pytest.mark.parametrize("accept", FORMATS)
def test_every_format_has_the_same_families_and_samples(url, accept):
    plain, asked = (httpx.get(url + "/metrics", headers={"accept": kind}) for kind in ("text/plain", accept))
    assert asked.headers["content-type"] == FORMATS[accept]
    expected = told(plain.text, plain.headers["content-type"])
    assert len(expected) >= 65
    assert told(asked.text, asked.headers["content-type"]) == expected
    assert "\nvllm:num_requests_running{" in asked.text


@pytest.mark.parametrize("accept", FORMATS)
def test_neuron_monitors_names_are_the_same_in_every_format(accept):
    """The formats are read at one moment: latencies exist only while the window has steps."""
    engine = EngineConfig(model="tiny")
    observer = Observer(engine, lambda: 100.0)
    made = NeuronMetrics("tiny", engine, observer)
    made.set_ready(READY)
    observer.take(STATS)
    (plain, text), (body, content_type) = (
        render(joint_registry({"tiny": [made]}, host=False), kind) for kind in ("text/plain", accept)
    )
    assert content_type == FORMATS[accept]
    expected = told(plain.decode(), text)
    assert len(expected) == 21
    assert told(body.decode(), content_type) == expected
    assert b"\nneuron_runtime_memory_used_bytes{" in body


def test_both_places_negotiate(url):
    for path in ("/metrics", "/metrics/neuron"):
        answer = httpx.get(url + path, headers={"accept": PROMETHEUS_3})
        assert answer.headers["content-type"] == FORMATS[PROMETHEUS_3]
        assert answer.text.endswith("# EOF\n")


@given(st.text(max_size=80) | st.from_regex(r"application/openmetrics-text; ?[a-z]{1,8}=[ -~]{0,12}"))
def test_whatever_is_accepted_there_is_an_answer(accept):
    body, content_type = render(CollectorRegistry(), accept)
    assert (body == b"# EOF\n") == content_type.startswith("application/openmetrics-text")
    assert re.fullmatch(
        r"[a-z/-]+; version=[01]\.0\.[014]; charset=utf-8(; escaping=[a-z0-9-]+)?", content_type
    )
