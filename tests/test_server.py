"""The whole server as a user runs it: a real process, real sockets, the default model, openai's client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator

import httpx
import openai
import psutil
import pytest

from tests.servers import END_SECONDS, TINY, Served, default_model, run, served, until

MODEL = "smollm2-135m-instruct"
PARIS = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
KEPT_AS_INT8 = "the host keeps keys and values as int8 (emulation only: bf16 on the device)"
LONG = {"model": TINY, "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Starts the server as a user does, with its imports."""
    default_model()
    with served(anew=True) as running:
        yield running


@pytest.fixture(scope="module")
def keyed() -> Iterator[Served]:
    """Starts a small model behind an API key."""
    with served(TINY, "--api-key", "secret", "--served-model-name", "tiny") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def idle(server: Served) -> bool:
    return server.metric("vllm:num_requests_running") == 0 and server.metric("corepipe_kv_blocks_held") == 0


def test_a_streamed_chat_names_paris(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=PARIS,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 1


def test_a_bad_word_is_not_said(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 16}
    for words in (["Paris"], ["Paris", "Par", "PARIS"], [" Paris is"]):
        said = client.completions.create(**asked, extra_body={"bad_words": words}).choices[0].text
        assert not any(word in said for word in words), said
    assert "Paris" in client.completions.create(**asked, extra_body={"bad_words": ["London"]}).choices[0].text


def test_only_allowed_tokens_are_said(server: Served, client: openai.OpenAI) -> None:
    """Chooses one of a few labels, as classifiers do, with sampling and without."""
    labels = [" Paris", " London", " Rome"]
    tokens = [server.post("/tokenize", json={"prompt": label}).json()["tokens"] for label in labels]
    assert all(len(one) == 1 for one in tokens)
    extra = {"allowed_token_ids": [one[0] for one in tokens]}
    asked = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 1}
    greedy = client.completions.create(**asked, temperature=0, extra_body=extra)
    assert greedy.choices[0].text == " Paris"
    drawn = client.completions.create(**asked, temperature=2, seed=1, n=16, extra_body=extra)
    assert {one.text for one in drawn.choices} <= {*labels}


def test_the_assistants_last_message_is_continued(client: openai.OpenAI) -> None:
    said = {"role": "assistant", "content": "The capital of France is the beautiful city of"}
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    answer = client.chat.completions.create(
        model=MODEL, messages=[*PARIS, said], temperature=0, max_tokens=3, extra_body=extra
    )
    assert (answer.choices[0].message.content or "").startswith(" Paris")


def test_a_prompts_logprobs_are_those_of_an_echo_with_their_ranks(server: Served) -> None:
    """Greedy answers do not depend on chunks or on the prefix cache."""
    text = "The capital of France is Paris. The capital of Italy is Rome. " * 4
    body = {"model": MODEL, "prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 20}
    answers = [
        server.post("/v1/completions", json=body | {"prompt_logprobs": 20, "return_token_ids": True}).json()
        for _ in range(2)
    ]
    first, again = (answer["choices"][0] for answer in answers)
    assert first == again
    ids, told = first["prompt_token_ids"], first["prompt_logprobs"]
    assert told[0] is None
    assert [next(iter(entry)) for entry in told[1:]] == [str(token) for token in ids[1:]]
    own = [entry[str(token)] for token, entry in zip(ids[1:], told[1:], strict=True)]
    assert [one["logprob"] for one in own] == first["logprobs"]["token_logprobs"][1 : len(ids)]
    for one, entry in zip(own, told[1:], strict=True):
        better = sum(other["logprob"] > one["logprob"] for other in entry.values())
        alike = sum(other["logprob"] == one["logprob"] for other in entry.values())
        assert better < one["rank"]
        assert one["rank"] <= better + alike or better == 20
    assert {one["rank"] for one in own} >= {1, 2}


def test_64_at_once_are_all_answered_and_alike(server: Served, client: openai.OpenAI) -> None:
    def ask(number: int) -> str:
        prompt = f"The number {number % 8} is"
        answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8)
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(ask, range(64)))
    assert texts == texts[:8] * 8, "a greedy answer depended on what else was in the batch"
    assert until(lambda: idle(server))


def test_a_cached_prefix_changes_no_answer(server: Served) -> None:
    words = " ".join(f"word {i}," for i in range(60))
    body = {"model": MODEL, "prompt": words, "temperature": 0, "max_tokens": 12, "logprobs": 3}
    cold, warm = (server.post("/v1/completions", json=body).json() for _ in range(2))
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    assert not (cold["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
    assert warm["choices"] == cold["choices"]


def test_a_client_that_leaves_frees_its_blocks(server: Served) -> None:
    aborted = server.metric("vllm:request_success_total", 'finished_reason="abort"')
    body = {**LONG, "model": MODEL, "prompt": "Count: 1 2 3"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        assert until(lambda: server.metric("vllm:num_requests_running") == 1)
        assert server.metric("corepipe_kv_blocks_held") > 0
    assert until(lambda: idle(server))
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert server.metric("vllm:request_success_total", 'finished_reason="abort"') == aborted + 1


def test_placement_and_metrics(server: Served) -> None:
    placement = server.get("/v1/placement").json()
    assert placement["emulated"] is True
    assert (placement["instance"], placement["format"]) == ("inf2.xlarge", "int8")
    assert [core["layers"][-1] for core in placement["cores"]] == [29]
    text = server.get("/metrics").text
    for name in ("num_requests_waiting", "time_to_first_token_seconds_bucket", "generation_tokens_total"):
        assert f"\nvllm:{name}" in text
    assert 'emulated="true"' in text


def test_device_metrics_are_labelled_as_emulated(server: Served) -> None:
    body = {"model": MODEL, "prompt": "one", "max_tokens": 4, "device_metrics": True}
    device = server.post("/v1/completions", json=body).json()["corepipe"]
    assert device["emulated"] is True
    assert device["device"] == "inf2.xlarge"
    assert device["time_to_first_token_ms"] > 0


@pytest.mark.slow
def test_a_signal_during_an_answer_ends_it_too() -> None:
    with served(default_model()) as server:
        engine = server.engine()
        name = server.get("/v1/models").json()["data"][0]["id"]
        body = {**LONG, "model": name}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            rest = _rest(lines)
        assert any("error" in line for line in rest)
        assert "[DONE]" not in "".join(rest)
        assert server.process.wait(END_SECONDS) == 0
        assert not psutil.pid_exists(engine.pid)


def _rest(lines: Iterator[str]) -> list[str]:
    """Reads the rest of the bytes; the connection may end at any place."""
    rest = []
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        rest.extend(lines)  # keeps what came before the end
    return rest


def test_a_second_server_on_the_port_is_told_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        second = run("serve", TINY, "--port", port)
    assert second.returncode == 2
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert "--port" in line
    assert str(port) in line


def test_an_api_key_is_asked_for(keyed: Served) -> None:
    assert keyed.get("/health").status_code == 200
    assert keyed.get("/v1/models").status_code == 401
    assert keyed.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="secret") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
    assert run("ls", "--url", keyed.url).returncode == 2
    shown = run("ls", "--url", keyed.url, "--api-key", "secret", "--json")
    assert json.loads(shown.stdout)["placement"]["model"] == "llama3"


@pytest.mark.parametrize("kept", [pytest.param("auto", marks=pytest.mark.slow), "int8"])
def test_preemption_changes_no_answer(kept: str) -> None:
    """The cache holds one full sequence: eight at once must preempt each other."""
    flags = ("--num-blocks", 8, "--kv-cache-dtype", kept)
    with served(TINY, *flags, "--served-model-name", "tiny") as server:
        assert (KEPT_AS_INT8 in run("ls", "--url", server.url).stdout) is (kept == "int8")

        def ask(*prompts: list[int]) -> list[dict[str, object]]:
            body = {"prompt": prompts, "max_tokens": 150, "temperature": 0, "ignore_eos": True}
            beside = {"bad_words": ["a", "on", " the"], "prompt_logprobs": 1, "return_token_ids": True}
            answer = server.post("/v1/completions", json={"model": "tiny", **body, **beside}).json()
            return [choice | {"index": 0} for choice in answer["choices"]]

        prompts = [[5 + number] * 40 for number in range(8)]
        alone = [choice for prompt in prompts for choice in ask(prompt)]
        assert server.metric("vllm:num_preemptions_total") == 0

        def preempted() -> bool:
            """The prompts are in one request, but on a busy machine some may end before others begin."""
            assert ask(*prompts) == alone
            return server.metric("vllm:num_preemptions_total") > 0

        assert until(preempted)
        assert until(lambda: idle(server))


def greedy(server: Served, key: str = "none") -> str:
    """Returns the answers to four requests sent at once."""
    headers = {"Authorization": f"Bearer {key}"}
    name = server.get("/v1/models", headers=headers).json()["data"][0]["id"]
    body = {"model": name, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 6}

    def ask(_: int) -> str:
        answer = server.post("/v1/completions", json=body, headers=headers).json()
        text: str = answer["choices"][0]["text"]
        return text

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        (text,) = set(pool.map(ask, range(4)))
    return text


@pytest.mark.parametrize(
    ("flags", "degrees", "cores"),
    [
        (("--pipeline", 2), "pipeline 2, tensor 1, data 1", 2),
        (("--data", 2), "pipeline 1, tensor 1, data 2", 1),
        (("--pipeline", 1, "--tensor", 2, "--instance", "inf1.6xlarge"), "pipeline 1, tensor 2, data 1", 2),
    ],
)
def test_every_placement_serves_and_is_shown(
    keyed: Served, flags: tuple[object, ...], degrees: str, cores: int
) -> None:
    with served(TINY, *flags) as server:
        assert greedy(server) == greedy(keyed, "secret")
        shown = run("ls", "--url", server.url)
        assert shown.returncode == 0
        assert degrees in shown.stdout
        assert KEPT_AS_INT8 not in shown.stdout
        assert len(server.get("/v1/placement").json()["cores"]) == cores
        replicas = int(degrees[-1])
        assert server.metric("corepipe_core_busy_seconds_total") > 0
        assert server.get("/metrics").text.count("\ncorepipe_kv_blocks{") == replicas


def test_the_device_clock_holds_tokens_back() -> None:
    """inf1 needs more time for these few weights than any host: each step waits for the device."""
    with served(TINY, "--clock", "device", "--instance", "inf1.xlarge", "--dtype", "fp32") as server:
        name = server.get("/v1/models").json()["data"][0]["id"]
        body = {"model": name, "prompt": "a", "max_tokens": 64, "ignore_eos": True, "device_metrics": True}
        start = time.perf_counter()
        device = server.post("/v1/completions", json=body).json()["corepipe"]
        took = (time.perf_counter() - start) * 1e3
        predicted = device["time_to_first_token_ms"] + 63 * device["time_per_output_token_ms"]
        assert took >= 0.99 * predicted, "tokens left before the device had them"
        assert server.metric("corepipe_late_steps_total") <= server.metric("corepipe_steps_total")


def test_an_interrupt_ends_it_with_0_and_without_children(keyed: Served) -> None:
    """The server ends as at the SIGTERM with which tests end servers."""
    engine = keyed.engine()
    assert keyed.end(signal.SIGINT) == 0
    assert not psutil.pid_exists(engine.pid)
