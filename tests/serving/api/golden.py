"""Writes answers of the server, byte for byte, in all forms that requests may ask for.

    python -m tests.serving.api.golden > tests/data/answers.jsonl

What differs from run to run is masked: ids, times, and the fingerprint of the configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx

from corepipe.engine.messages import Output, failed_output
from tests.serving.http_support import FakeEngine, Script, running, saying, tokenizer

TEXT = {"model": "tiny", "prompt": "Hi there", "max_tokens": 6}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
COMPLETIONS, CHATS, INVOCATIONS = "/v1/completions", "/v1/chat/completions", "/invocations"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}

_MASKS = (
    (re.compile(r'"(cmpl-|chatcmpl-|msg_)[0-9a-f]{24}"'), r'"\1ID"'),
    (re.compile(r'"created":\d+'), '"created":0'),
    (re.compile(r'"fp_[0-9a-f]{10}"'), '"fp_"'),
)


def _broken(submit: Any) -> list[Output | float]:
    """Makes a script that fails after two tokens."""
    ids = tokenizer().encode("Hello")
    said: list[Output | float] = [step for token in ids[:2] for step in (0.001, Output(submit.id, [token]))]
    return [*said, 0.001, failed_output(submit.id, "The engine has stopped.")]


def _refused(submit: Any) -> list[Output | float]:
    return [Output(submit.id, finish_reason="error", error="The queue is full.", error_kind="overloaded")]


SCRIPTS: dict[str, Script] = {
    "slow": saying("Hello wörld… ", pause=0.001),
    "at once": saying("Hello wörld… "),
    "eos": saying("Yes<|im_end|>", pause=0.001, ends="stop"),
    "broken": _broken,
    "refused": _refused,
}


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields (script, path, body) of each request."""
    for script, form in product(("slow", "at once", "eos"), ({}, STREAM, USAGE)):
        yield script, COMPLETIONS, TEXT | form
        yield script, CHATS, CHAT | form
        for count in (0, 2):
            yield script, COMPLETIONS, TEXT | form | {"logprobs": count}
            yield script, CHATS, CHAT | form | {"logprobs": True, "top_logprobs": count}
        yield script, COMPLETIONS, TEXT | form | {"echo": True}
        yield script, COMPLETIONS, TEXT | form | {"echo": True, "logprobs": 1}
        yield script, COMPLETIONS, TEXT | form | {"device_metrics": True}
        yield script, CHATS, CHAT | form | {"device_metrics": True}
    for script, form in product(SCRIPTS, ({}, STREAM)):
        yield script, MESSAGES, CHAT | form
        yield script, MESSAGES, CHAT | form | {"stop_sequences": ["l"]}
    for form in ({}, STREAM, USAGE):
        yield from _cut(form)
        yield "slow", COMPLETIONS, TEXT | form | {"max_tokens": 0, "echo": True, "logprobs": 0}
        yield "slow", COMPLETIONS, TEXT | form | {"max_tokens": 0, "echo": True, "device_metrics": True}
        yield "at once", COMPLETIONS, TEXT | form | {"prompt": ["a", "Hi"], "n": 2}
        yield "at once", CHATS, CHAT | form | {"n": 3}
        yield "broken", COMPLETIONS, TEXT | form
        yield "broken", CHATS, CHAT | form
        yield "refused", CHATS, CHAT | form
        yield "slow", INVOCATIONS, {"prompt": "a", "max_tokens": 3} | form
        yield "slow", INVOCATIONS, {"messages": CHAT["messages"], "max_tokens": 3} | form


def _cut(form: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields requests that end early, or that show what ended the answer."""
    for stop in (
        {"stop": ["o w", "x"]},
        {"stop": "wör", "include_stop_str_in_output": True},
        {"stop": "lo", "logprobs": 1},
        {"stop": "e", "min_tokens": 4},
        {"stop": "d…", "device_metrics": True},
    ):
        for script in ("slow", "at once"):
            yield script, COMPLETIONS, TEXT | {"max_tokens": 16} | form | stop
    eos = sorted(tokenizer().eos_ids)
    yield "slow", CHATS, CHAT | form | {"stop": "l"}
    yield "eos", CHATS, CHAT | form | {"stop_token_ids": eos}
    yield "eos", CHATS, CHAT | form | {"stop_token_ids": eos, "include_stop_str_in_output": True}
    yield "eos", COMPLETIONS, TEXT | form | {"skip_special_tokens": False, "include_stop_str_in_output": True}
    yield "eos", COMPLETIONS, TEXT | form | {"ignore_eos": True, "skip_special_tokens": False, "logprobs": 0}


def answers() -> Iterator[str]:
    """Yields one line of JSON for each case: the request and the answer."""
    engine = FakeEngine()
    with running(engine) as url, httpx.Client(base_url=url) as client:
        for script, path, body in cases():
            engine.script = SCRIPTS[script]
            answer = client.post(path, json=body)
            said = {"status": answer.status_code, "type": answer.headers["content-type"]}
            line = {"script": script, "path": path, "body": body} | said | {"answer": _masked(answer.text)}
            yield json.dumps(line, ensure_ascii=False)


def _masked(text: str) -> list[str]:
    """Returns the lines of an answer; those of several choices sorted by choice, since their order varies."""
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return sorted(filter(None, text.split("\n")), key=_choice)


def _choice(line: str) -> int:
    found = re.search(r'"choices":\[\{"index":(\d+)', line)
    return int(found[1]) if found and line.startswith("data: ") else 99


if __name__ == "__main__":
    for line in answers():
        print(line)
