"""Models of a directory in real processes: loaded when they are named, two at a time, beside kills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.engine.params import SamplingParams
from corepipe.library.llm import LLM
from tests.servers import PATIENCE_SECONDS, TINY, Served, engines, metric_of, served, until

FAMILIES = ("llama3", "qwen2", "mistral")
WORDS = ("Hello world", "The cat", "One two three", "Once upon a time")
TOKENS = 12


def make_model(folder: Path, family: str, seed: int) -> None:
    """Copies a tiny model; with a seed its weights are others, so that its answers are its own."""
    shutil.copytree(TINY.parent / family, folder)
    if seed:
        weights = load_file(folder / "model.safetensors")
        random = np.random.default_rng(seed)
        moved = {name: one[random.permutation(len(one))] for name, one in weights.items() if "mlp" in name}
        save_file(weights | moved, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six models with different answers, and entries that are none."""
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        for family in FAMILIES:
            make_model(root / f"{family}-{seed}", family, seed)
    return root


@pytest.fixture(scope="module")
def answers(folder: Path) -> Mapping[tuple[str, str], str]:
    """The answers that each model gives alone, to each text."""
    greedily, found = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True), {}
    for model in sorted(folder.iterdir()):
        with LLM(model, threads=1) as alone:
            for text, answer in zip(WORDS, alone.generate(WORDS, greedily), strict=True):
                found[model.name, text] = answer[0].text if isinstance(answer, list) else answer.text
    assert len(set(found.values())) == len(found), "each answer tells its model"
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    flags = ("--models-dir", folder, "--max-models", 2, "--admin-port", 0, "--threads", 1)
    with served(*flags) as one:
        yield one


def admin(server: Served) -> str:
    assert until(lambda: any("control: " in line for line in server.stderr))
    line = next(line for line in server.stderr if "control: " in line)
    return line.partition("control: ")[2].split(";")[0].strip()


def ask(server: Served, model: str, text: str, *, stream: bool = False) -> str:
    body = {"model": model, "prompt": text, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    if not stream:
        answer = server.post("/v1/completions", json=body, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        whole: str = answer.json()["choices"][0]["text"]
        return whole
    parts = []
    address = f"{server.url}/v1/completions"
    with httpx.stream("POST", address, json=body | {"stream": True}, timeout=PATIENCE_SECONDS) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                parts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    return "".join(parts)


def states(server: Served) -> dict[str, str]:
    cards = server.get("/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in cards}


def test_all_are_listed_and_none_is_loaded_before_it_is_named(server: Served, folder: Path) -> None:
    assert states(server) == {one.name: "unloaded" for one in folder.iterdir()}
    assert server.get("/health").json() == {"status": "ready", "models": {}}
    assert server.get("/v1/models/llama3-0").json()["status"] == {"value": "unloaded"}
    assert server.get("/v2/models/llama3-0/ready").json()["ready"]
    assert set(states(server).values()) == {"unloaded"}, "to ask what there is loads nothing"


def mixed(server: Served, answers: Mapping[tuple[str, str], str], count: int, kills: int) -> None:
    """Asks all models at once, while engines are killed; each answer is that of its model alone."""
    wanted = [*answers] * (count // len(answers) + 1)
    left, done = threading.Semaphore(0), threading.Event()

    def one(at: int) -> None:
        model, text = wanted[at]
        assert ask(server, model, text, stream=at % 3 == 0) == answers[model, text], (at, model)
        left.release()

    def kill() -> None:
        for _ in range(kills):
            for _ in range(count // (kills + 1)):
                left.acquire()
            if done.is_set():
                return
            with contextlib.suppress(IndexError, ProcessLookupError):
                os.kill(engines(server.process.pid)[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(12) as pool:
        results = [pool.submit(one, at) for at in range(count)]
    done.set()
    for _ in range(count):
        left.release()
    killer.join()
    for result in results:
        result.result()


def test_no_answer_is_lost_or_from_another_model(
    server: Served, answers: Mapping[tuple[str, str], str]
) -> None:
    mixed(server, answers, count=36, kills=1)
    assert sum(state == "loaded" for state in states(server).values()) <= 2


@pytest.mark.slow
def test_no_answer_is_lost_or_from_another_model_of_500(
    server: Served, answers: Mapping[tuple[str, str], str]
) -> None:
    mixed(server, answers, count=500, kills=6)
    text = httpx.get(f"{admin(server)}/metrics").text
    lost = metric_of(text, "corepipe_engine_restarts_total", 'reason="killed"')
    print(f"{metric_of(text, 'corepipe_model_changes_total', 'load'):.0f} loads, {lost:.0f} engines killed")


def test_counters_of_a_model_that_left_go_on(server: Served) -> None:
    name = 'model_name="llama3-0"'
    server_metrics = f"{admin(server)}/metrics"

    def generated() -> float:
        return metric_of(httpx.get(server_metrics).text, "vllm:generation_tokens_total", name)

    ask(server, "llama3-0", WORDS[0])
    assert until(lambda: generated() % TOKENS == 0)
    before = generated()
    assert httpx.post(f"{admin(server)}/models/unload", json={"model": "llama3-0"}).json() == {
        "success": True
    }
    assert states(server)["llama3-0"] == "unloaded"
    assert generated() == before
    ask(server, "llama3-0", WORDS[0])
    assert until(lambda: generated() == before + TOKENS)


def test_unloading_waits_for_the_answers(server: Served, answers: Mapping[tuple[str, str], str]) -> None:
    body = {"model": "qwen2-0", "prompt": "a", "max_tokens": 100, "ignore_eos": True, "stream": True}
    address = f"{server.url}/v1/completions"
    with (
        httpx.stream("POST", address, json=body, timeout=PATIENCE_SECONDS) as answer,
        ThreadPoolExecutor() as pool,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        unloaded = pool.submit(
            httpx.post, f"{admin(server)}/models/unload", json={"model": "qwen2-0"}, timeout=PATIENCE_SECONDS
        )
        again = pool.submit(ask, server, "qwen2-0", WORDS[1])
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert unloaded.result().status_code == 200
        assert again.result() == answers["qwen2-0", WORDS[1]]


def test_it_sleeps_and_wakes_with_the_same_answers(
    server: Served, answers: Mapping[tuple[str, str], str]
) -> None:
    at = admin(server)
    ask(server, "mistral-0", WORDS[0])
    assert httpx.post(f"{at}/sleep?level=1&model=mistral-0", timeout=PATIENCE_SECONDS).status_code == 200
    assert httpx.get(f"{at}/is_sleeping?model=mistral-0").json() == {"is_sleeping": True}
    assert states(server)["mistral-0"] == "sleeping"
    assert server.get("/health").status_code == 200
    assert ask(server, "mistral-0", WORDS[2]) == answers["mistral-0", WORDS[2]]
    assert httpx.post(f"{at}/sleep", timeout=PATIENCE_SECONDS).status_code == 200
    assert until(lambda: not engines(server.process.pid)), "weights and caches are given back"
    assert httpx.post(f"{at}/wake_up", timeout=PATIENCE_SECONDS).status_code == 200
    assert httpx.get(f"{at}/is_sleeping").json() == {"is_sleeping": False}
    for query in ("level=3", "mode=never"):
        assert httpx.post(f"{at}/sleep?{query}").status_code == 400
    assert httpx.post(f"{at}/wake_up?tags=all").status_code == 400


def test_what_is_not_there_is_refused_by_name(server: Served) -> None:
    for name in (
        "nobody",
        "../llama3-0",
        "/etc",
        "llama3-0/",
        "a\0b",
        "x" * 10_000,
        ".",
        "llama3-0/../llama3-0",
    ):
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        refused = server.post("/v1/completions", json=body, timeout=PATIENCE_SECONDS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        load = httpx.post(f"{admin(server)}/models/load", json={"model": name}, timeout=PATIENCE_SECONDS)
        assert load.status_code == 404
    nameless = server.post("/v1/completions", json={"prompt": "a"})
    assert nameless.json()["error"]["code"] == "missing_required_parameter"
    assert server.post("/models/load", json={"model": "llama3-0"}).status_code == 404, "not for users"


def test_a_server_with_models_asleep_and_loading_ends_without_children(folder: Path) -> None:
    flags = ("--models-dir", folder, "--max-models", 2, "--shutdown-timeout", 0, "--threads", 1)
    with served(*flags) as server, ThreadPoolExecutor() as pool:
        ask(server, "llama3-0", WORDS[0])
        children = psutil.Process(server.process.pid).children()
        waiting = pool.submit(
            httpx.post,
            f"{server.url}/v1/completions",
            json={"model": "qwen2-0", "prompt": "a"},
            timeout=PATIENCE_SECONDS,
        )
        assert until(lambda: states(server)["qwen2-0"] == "loading")
        children += psutil.Process(server.process.pid).children()
        assert server.end() == 0
        with contextlib.suppress(httpx.HTTPError):
            assert waiting.result().status_code in (200, 503)
        assert until(lambda: not any(child.is_running() for child in children))


def test_an_idle_model_sleeps_and_the_next_request_wakes_it() -> None:
    """A single model of the command line, too."""
    with served(TINY, "--sleep-idle-seconds", "0.2") as server:
        first = server.post("/v1/completions", json={"prompt": "a", "max_tokens": 4, "temperature": 0}).json()
        assert until(lambda: server.get("/health").json()["status"] == "sleeping")
        assert server.get("/health").status_code == 200
        assert not engines(server.process.pid)
        again = server.post(
            "/v1/completions",
            json={"prompt": "a", "max_tokens": 4, "temperature": 0},
            timeout=PATIENCE_SECONDS,
        ).json()
        assert again["choices"] == first["choices"]
