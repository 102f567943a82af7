"""Two models in one server, in real processes: addressed, killed, held up, drained, and told of."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from corepipe.bench.target import Http, Target, find
from corepipe.cli.run.monitor import document
from corepipe.cli.run.reading import MetricsDelta, MonitoredServer
from corepipe.engine.params import SamplingParams
from corepipe.library.llm import LLM
from tests.servers import PATIENCE_SECONDS, TINY, Served, engines, run, served, until

OTHER = TINY.parent / "qwen2"
FLAGS = (
    *(TINY, "--served-model-name", "a", "--also", f"b={OTHER},dtype=fp32,max-num-seqs=4"),
    *("--shutdown-timeout", PATIENCE_SECONDS),
)
LONG = {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(*FLAGS, spare=True) as one:
        yield one


def greedy(server: Served, model: str) -> str:
    body = {"model": model, "prompt": "Hello world", "max_tokens": 8, "temperature": 0}
    answer = server.post("/v1/completions", json=body, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def engine_of(server: Served, name: str) -> psutil.Process:
    """By what the server tells of its state."""
    pids = {line.split(": ")[0]: int(line.split("engine ")[1].split(",")[0]) for line in told(server)}
    return psutil.Process(pids[name])


def told(server: Served) -> list[str]:
    """The lines on each model that SIGUSR1 has the server say, of now."""
    before = len(server.stderr)
    server.process.send_signal(signal.SIGUSR1)
    assert until(lambda: [line for line in server.stderr[before:] if "replica 0" in line][1:])
    return [line for line in server.stderr[before:] if line.startswith(("a: ", "b: ")) and "engine " in line]


def states(server: Served) -> dict[str, str]:
    found: dict[str, str] = server.get("/health").json()["models"]
    return found


def ready(server: Served) -> bool:
    return states(server) == {"a": "ready", "b": "ready"}


def test_each_says_what_it_says_alone(server: Served) -> None:
    greedily = SamplingParams(temperature=0.0, max_tokens=8)
    for name, model, kept in (("a", TINY, "int8"), ("b", OTHER, "fp32")):
        with LLM(model, format=kept, threads=1) as alone:
            assert greedy(server, name) == alone.generate("Hello world", greedily)[0].text


def test_cores_and_threads_are_shared_out(server: Served) -> None:
    placed = server.get("/v1/placement").json()["models"]
    assert [(one["name"], one["neuroncore_ids"]) for one in placed] == [("a", [0]), ("b", [1])]
    assert [one["format"] for one in placed] == ["int8", "fp32"]
    shown = run("ls", "--url", server.url).stdout
    assert "NeuronCores 0" in shown
    assert "NeuronCores 1" in shown
    cpus = len(psutil.Process().cpu_affinity() or [1])
    lines = [line for line in server.stderr if ": ready in " in line]
    assert [line.partition(":")[0] for line in lines] == ["a", "b"]
    assert sum(int(line.partition("kernels, ")[2].split()[0]) for line in lines) == max(2, cpus)


def test_top_and_monitor_show_each_of_them(server: Served) -> None:
    """The names and settings that each model has to itself."""
    with contextlib.closing(MonitoredServer(server.url, None)) as read:
        before = read.read()
        for name in ("a", "b", "b"):
            assert greedy(server, name)
        deployments, after = read.deployments(), read.read()
    assert [(one.name, one.format) for one in deployments] == [("a", "int8"), ("b", "fp32")]
    told = [MetricsDelta(before, after, one) for one in deployments]
    assert [one.count("vllm:request_success_total") for one in told] == [1, 2]
    assert [[core.core for core in one.cores] for one in told] == [[0], [1]]
    assert {one.after.total("system_vcpu_count") for one in told} == {after.total("system_vcpu_count")}
    runtimes = document(told)["neuron_runtime_data"]
    assert [one["neuron_runtime_tag"] for one in runtimes] == ["a", "b"]
    in_use = [one["report"]["neuroncore_counters"]["neuroncores_in_use"] for one in runtimes]
    assert [[*one] for one in in_use] == [["0"], ["1"]]
    shown = run("top", server.url, "--interval", "100ms").stdout
    assert [line.split()[3] for line in shown.splitlines() if line.startswith("corepipe top")] == ["a:", "b:"]


def test_a_load_test_knows_the_placement_of_the_model_that_it_asks(server: Served) -> None:
    async def placed(model: str) -> object:
        http = Http(Target.parse(server.url), None)
        try:
            found = (await find(http, model)).placement
        finally:
            http.pool.close()
        return None if found is None else found["format"]

    assert [asyncio.run(placed(name)) for name in ("a", "b")] == ["int8", "fp32"]


def test_one_that_is_killed_comes_back_and_the_other_does_not_notice(server: Served) -> None:
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**LONG, "model": "a"}, timeout=PATIENCE_SECONDS
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        engine_of(server, "b").kill()
        assert until(lambda: any("the engine of b was ended by SIGKILL" in line for line in server.stderr))
        assert greedy(server, "a")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert until(lambda: ready(server))
    assert greedy(server, "b")
    text = server.get("/metrics").text
    assert 'corepipe_engine_restarts_total{model_name="b",reason="killed"} 1.0' in text
    assert 'corepipe_engine_restarts_total{model_name="a",reason="killed"} 0.0' in text


def test_one_that_stands_still_holds_nobody_up(server: Served) -> None:
    still = engine_of(server, "a")
    still.suspend()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(greedy, server, "a")
        assert greedy(server, "b")
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have been taken for one that hangs
            still.resume()
        assert waiting.result()
    assert until(lambda: ready(server))


def test_both_are_drained_and_end_with_the_server(server: Served) -> None:
    """The last of the tests, since it ends their server."""
    with contextlib.ExitStack() as stack:
        answers = [
            stack.enter_context(
                httpx.stream(
                    "POST",
                    f"{server.url}/v1/completions",
                    json={**LONG, "model": name},
                    timeout=PATIENCE_SECONDS,
                )
            )
            for name in ("a", "b")
        ]
        lines = [answer.iter_lines() for answer in answers]
        assert all(next(each).startswith("data: ") for each in lines)
        children = engines(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert [[line for line in each if line][-1] for each in lines] == ["data: [DONE]"] * 2
    assert server.process.wait(PATIENCE_SECONDS) == 0
    assert until(lambda: not any(child.is_running() for child in children))
