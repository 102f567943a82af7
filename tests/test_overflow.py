"""Models whose finite weights overflow: answers end with an error, and with no one else's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from corepipe import LLM, SamplingParams
from corepipe.errors import UserError
from tests.parity import expected
from tests.parity.families import VOCAB
from tests.servers import TINY, Served, served, until

BAD = 77
"""A token whose presence makes the first layer overflow, and with it all that follows it."""

HEALTHY, POISONED = [5, 6, 7, 8], [5, 6, BAD, 8]
MESSAGE = "The model's logits overflowed"


def model(where: Path, *, everywhere: bool) -> Path:
    """The tiny model with finite weights that overflow: `everywhere`, or in sequences that hold BAD."""
    shutil.copytree(TINY, where)
    tensors = {name: np.array(x) for name, x in load_file(where / "model.safetensors").items()}
    if everywhere:
        tensors["lm_head.weight"] = (tensors["lm_head.weight"].astype(np.float32) * 1e38).clip(-3e38, 3e38)
    else:
        _poison(tensors)
    save_file(tensors, where / "model.safetensors")
    return where


def _poison(tensors: dict[str, np.ndarray]) -> None:
    """Element 0 of the residual stream is 0 for all but BAD, and gate and up take it 1e25 times."""
    for name in list(tensors):
        tensors[name] = tensors[name].astype(np.float32)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name][0] = 0
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensors[name][:, 0] = 1e25
    tensors["model.embed_tokens.weight"][:, 0] = 0
    tensors["model.embed_tokens.weight"][BAD] = 0
    tensors["model.embed_tokens.weight"][BAD, 0] = 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = model(tmp_path_factory.mktemp("model") / "poisoned", everywhere=False)
    with served(path, "--dtype", "fp32", "--served-model-name", "m", "--threads", 2) as running:
        yield running


def body(prompt: list[int], **more: object) -> dict[str, object]:
    return {"model": "m", "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True} | more


def check_error(error: dict[str, object]) -> None:
    assert error["type"] == "server_error"
    assert error["code"] == "logits_overflow"
    assert str(error["message"]).startswith(MESSAGE)


VARIANTS = [
    {},
    {"temperature": 1, "seed": 3, "top_p": 0.9},
    {"logprobs": 3},
    {"temperature": 0.7, "n": 3},
    {"echo": True, "logprobs": 0, "max_tokens": 0},
    {"logit_bias": {"9": 5}, "presence_penalty": 1},
]


@pytest.mark.parametrize("more", VARIANTS, ids=str)
def test_an_answer_ends_with_an_error(more: dict[str, object], server: Served) -> None:
    before = server.metric("corepipe_overflows_total")
    answer = server.post("/v1/completions", json=body(POISONED, **more))
    assert answer.status_code == 500
    check_error(answer.json()["error"])
    assert until(lambda: server.metric("corepipe_overflows_total") > before)
    fine = server.post("/v1/completions", json=body(HEALTHY, **more))
    assert fine.status_code == 200
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("more", VARIANTS[:4], ids=str)
def test_a_stream_that_has_not_begun_ends_with_the_status(more: dict[str, object], server: Served) -> None:
    answer = server.post("/v1/completions", json=body(POISONED, stream=True, **more))
    assert answer.status_code == 500
    check_error(answer.json()["error"])


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"n": 2}], ids=str)
def test_a_stream_that_has_begun_ends_with_an_event(more: dict[str, object], server: Served) -> None:
    """The bad token comes with the answer, at some place; too near the beginning it is one piece of news."""
    drawn = {"temperature": 1, "logit_bias": {str(BAD): 2}, "max_tokens": 230, "stream": True}

    def has_begun(seed: int) -> bool:
        answer = server.post("/v1/completions", json=body(HEALTHY, **more) | drawn | {"seed": seed})
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        check_error((events[-1] if answer.status_code == 200 else answer.json())["error"])
        assert "[DONE]" not in answer.text
        return answer.status_code == 200 and bool(events[0]["choices"])

    assert any(has_begun(seed) for seed in range(50))


def test_others_in_the_batch_are_unharmed(server: Served) -> None:
    """A crowd that is answered while others overflow beside it has the tokens and logprobs of each alone."""
    asked = [body([5 + i, 6, 7, 8 + i], logprobs=2, max_tokens=40) for i in range(4)]
    alone = [server.post("/v1/completions", json=one).json()["choices"] for one in asked]
    ended = server.metric("vllm:request_success_total", 'finished_reason="error"')
    overflowed = server.metric("corepipe_overflows_total")
    mixed = [one for pair in zip(asked, [body(POISONED)] * 4, strict=True) for one in pair]
    with httpx.Client(base_url=server.url, timeout=120) as client, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda one: client.post("/v1/completions", json=one), mixed))
    assert [answer.json()["choices"] for answer in answers[::2]] == alone
    assert [answer.status_code for answer in answers[1::2]] == [500] * 4
    assert server.metric("vllm:request_success_total", 'finished_reason="error"') == ended + 4
    assert until(lambda: server.metric("corepipe_overflows_total") == overflowed + 4)
    assert until(lambda: server.metric("corepipe_kv_blocks_held") == 0)
    assert server.metric("vllm:num_requests_running") == 0


def test_a_chat_ends_with_an_error(tmp_path: Path) -> None:
    path = model(tmp_path / "model", everywhere=True)
    with served(path, "--dtype", "bf16", "--served-model-name", "m", "--threads", 1) as running:
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        for more in ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}, {"stream": True}):
            answer = running.post("/v1/chat/completions", json=chat | more)
            assert answer.status_code == 500, answer.text
            check_error(answer.json()["error"])
        assert until(lambda: running.metric("corepipe_overflows_total") >= 4)
        assert running.metric("corepipe_engine_restarts_total") == 0


def mixture(where: Path, name: str) -> Path:
    """A mixture whose router overflows in sequences that hold BAD."""
    small = expected.load(name)
    shapes = {name: tuple({expected.VOCAB: VOCAB}.get(n, n) for n in s) for name, s in small.shapes.items()}
    path = replace(small, config={**small.config, "vocab_size": VOCAB}, shapes=shapes).write(where)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / file, path)
    tensors = {name: np.array(x) for name, x in load_file(path / "model.safetensors").items()}
    for name, values in tensors.items():
        if name.endswith(("o_proj.weight", "o_proj.bias", "w2.weight", "down_proj.weight")):
            values[0] = 0
        elif name.endswith(".gate.weight"):
            values[:, 0] = 3e38
    tensors["model.embed_tokens.weight"][:, 0] = 0
    tensors["model.embed_tokens.weight"][BAD, 0] = 100
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("kind", ["dense", "mixtral", "deepseek_v2-groups", "deepseek_v3"])
def test_in_python(tmp_path: Path, kind: str) -> None:
    where = tmp_path / "poisoned"
    path = model(where, everywhere=False) if kind == "dense" else mixture(where, kind)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with LLM(str(path), format="fp32", threads=1) as llm:
        before = llm.generate([HEALTHY], greedy)[0].token_ids
        with pytest.raises(UserError, match=MESSAGE):
            llm.generate([HEALTHY, POISONED], greedy)
        assert llm.generate([HEALTHY], greedy)[0].token_ids == before
