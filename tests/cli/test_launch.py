"""Servers at the device's pace: their messages, a host that is too slow, and Ctrl-C in a step."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from corepipe.serving.telemetry.lateness import HOST_IS_SLOWER
from tests.servers import TINY, Served, run, served, until

PACED = (
    "--clock",
    "device",
    "--timing-model",
    "llama-3.1-70b",
    "--instance",
    "trn1.32xlarge",
    "--tensor",
    32,
)


@contextmanager
def paced(scale: float, *flags: object) -> Iterator[Served]:
    with served(TINY, "--served-model-name", "tiny", *PACED, "--time-scale", scale, *flags) as server:
        yield server


def test_times_under_vllms_names_are_the_clients() -> None:
    """A second of the device takes 50 of the client's, which tells the two apart however busy the host is."""
    with paced(50.0) as server:
        assert ask(server, 4).status_code == 200
        for name in ("prefill", "decode", "inference"):
            device = server.metric(f"corepipe_device_{name}_time_seconds_sum", 'emulated="true"')
            assert server.metric(f"vllm:request_{name}_time_seconds_sum") > 5 * device > 0
        assert server.metric("vllm:request_queue_time_seconds_count") == 1


def ask(server: Served, tokens: int, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": True, **fields}
    return server.post("/v1/completions", json=body)


def test_whose_pace_it_is_and_who_computes() -> None:
    with paced(2.0, "--verbose") as server:
        said = "".join(server.stderr)
        assert "llama-3.1-70b, int8" in said
        assert (
            "on trn1.32xlarge (emulated, software profile vllm-neuron): pipeline 1, tensor 32, data 1" in said
        )
        assert "llama3 computes the tokens" in said
        assert "one second on the device clock takes 2 s" in said
        assert (
            "llama-3.1-70b takes 8192 tokens a request here; llama3, which the host computes, takes 256"
            in said
        )
        shown = run("ls", "--url", server.url).stdout
        assert "times, memory and limits are those of llama-3.1-70b" in shown

        start = time.perf_counter()
        device = ask(server, 5, device_metrics=True).json()["corepipe"]
        took = (time.perf_counter() - start) * 1e3
        predicted = device["time_to_first_token_ms"] + 4 * device["time_per_output_token_ms"]
        assert device["time_per_output_token_ms"] > 5, "a model of two layers would take less"
        assert took >= 2 * 0.99 * predicted, "tokens left before the device had them"
        assert ask(server, 300).json()["error"]["code"] == "context_length_exceeded"


def test_a_host_that_is_too_slow_is_told_once() -> None:
    with paced(1e-4) as server:
        for _ in range(3):
            assert ask(server, 60).status_code == 200
        assert until(lambda: any(HOST_IS_SLOWER in line for line in server.stderr))
        late, steps = (server.metric(f"corepipe_{name}_total") for name in ("late_steps", "steps"))
        assert 0.9 * steps < late <= steps
        told = [line for line in server.stderr if HOST_IS_SLOWER in line]
        assert len(told) == 1
        assert re.search(r"not valid \(\d+ of \d+ steps late; --time-scale \S+ would do\)", told[0])

        assert server.metric("corepipe_device_times_valid") == 0
        needed = server.metric("corepipe_time_scale_needed")
        assert needed > 1e-4
        device = ask(server, 5, device_metrics=True).json()["corepipe"]
        assert (device["emulated"], device["valid"]) == (True, False)
        assert device["time_scale_needed"] == server.metric("corepipe_time_scale_needed")

        load = ("--requests", 4, "--concurrency", 2, "--input-len", 8, "--output-len", 40)
        bench = run("bench", server.url, *load, "--json")
        found = json.loads(bench.stdout)
        assert found["host_was_late"] is True
        assert found["device"]["valid"] is False
        assert found["device"]["time_scale_needed"] > 1e-4
        assert f"--time-scale {found['device']['time_scale_needed']:g} would do" in bench.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_a_step_that_takes_minutes(number: signal.Signals) -> None:
    """Answers under way have five seconds, and then end unfinished."""
    with paced(1e5) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, server, 9)
        assert until(lambda: server.metric("vllm:num_requests_running") == 1)
        assert server.end(number) == 0
        assert answer.result().status_code == 503
