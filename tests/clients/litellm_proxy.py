"""litellm as a proxy in front: chat, responses and messages through it, by the SDKs of both dialects."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anthropic
import openai

from tests.clients.rows import BASE, KEY, MODEL, SCRIPTED, URL, Rows, raises
from tests.clients.shapes import ASK_WEATHER, QUESTION

LIMIT_SECONDS = 180
SETTINGS = {
    "model_list": [
        *(
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{name}", "api_base": URL, "api_key": KEY},
            }
            for name in (MODEL, SCRIPTED)
        ),
        {
            "model_name": "messages",
            "litellm_params": {"model": f"anthropic/{SCRIPTED}", "api_base": BASE, "api_key": KEY},
        },
    ],
    "general_settings": {"master_key": "sk-rows"},
    "litellm_settings": {"telemetry": False, "num_retries": 0},
    "router_settings": {"disable_cooldowns": True},
}
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
row = Rows()
proxy = ""


@contextmanager
def running() -> Iterator[str]:
    """Starts the proxy in a process of its own, with no database; yields its URL."""
    with TemporaryDirectory() as folder, socket.socket() as free:
        settings = Path(folder) / "settings.yaml"
        settings.write_text(json.dumps(SETTINGS))
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [str(Path(sys.executable).with_name("litellm")), "--config", str(settings)]
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "HOME": folder, "SEPARATE_HEALTH_APP": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _ready(f"http://127.0.0.1:{port}", process)
        finally:
            process.kill()
            process.wait()


def _ready(url: str, process: subprocess.Popen[bytes]) -> str:
    client = openai.OpenAI(base_url=url, api_key="sk-rows", max_retries=0)
    for _ in range(LIMIT_SECONDS):
        try:
            client.models.list()
        except openai.APIConnectionError:
            assert process.poll() is None
            time.sleep(1)
        else:
            return url
    raise TimeoutError("the proxy does not start")


def to_openai() -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy}/v1", api_key="sk-rows", max_retries=0)


def to_anthropic() -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=proxy, api_key="sk-rows", max_retries=0)


CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": 16,
}


@row
def chat() -> None:
    """chat.completions, plain and streamed"""
    plain = to_openai().chat.completions.create(**CHAT).choices[0].message.content
    stream = to_openai().chat.completions.create(**CHAT, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert "Paris" in text
    assert text == plain


@row
def chat_tools() -> None:
    """chat.completions with tools: a call in a stream"""
    asked = {**CHAT, "model": SCRIPTED, "max_tokens": 100, "tools": [{"type": "function", "function": TOOL}]}
    with to_openai().chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    (called,) = final.choices[0].message.tool_calls or []
    assert json.loads(called.function.arguments) == {"location": "Paris"}


@row
def responses() -> None:
    """responses, plain and streamed, and retrieved again"""
    asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "max_output_tokens": 16, "temperature": 0}
    plain = to_openai().responses.create(**asked)
    events = list(to_openai().responses.create(**asked, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == plain.output_text
    assert to_openai().responses.retrieve(plain.id).output_text == plain.output_text


@row
def responses_tools() -> None:
    """responses with tools: a call, and its output by previous_response_id"""
    asked: dict[str, Any] = {"model": SCRIPTED, "tools": [{"type": "function", **TOOL}]}
    first = to_openai().responses.create(**asked, input=ASK_WEATHER)
    (called,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": called.call_id, "output": "18 degrees"}
    second = to_openai().responses.create(**asked, input=[result], previous_response_id=first.id)
    assert "18 degrees" in second.output_text


@row
def messages() -> None:
    """messages, to the server's chat route and to its messages, plain and streamed"""
    schema = {"name": "get_weather", "description": "Weather.", "input_schema": TOOL["parameters"]}
    for name in (SCRIPTED, "messages"):
        asked: dict[str, Any] = {
            "model": name,
            "max_tokens": 100,
            "messages": [{"role": "user", "content": ASK_WEATHER}],
            "tools": [schema],
        }
        with to_anthropic().messages.stream(**asked) as stream:
            final = stream.get_final_message()
        plain = to_anthropic().messages.create(**asked)
        for answer in (plain, final):
            (use,) = [block for block in answer.content if block.type == "tool_use"]
            assert use.input == {"location": "Paris"}
            assert answer.stop_reason == "tool_use"


@row
def errors() -> None:
    """what the server refuses is a 400 that names the field, in both dialects"""
    with raises(openai.BadRequestError) as caught:
        to_openai().chat.completions.create(**{**CHAT, "temperature": 9})
    assert "temperature" in str(caught.error)
    with raises(anthropic.BadRequestError) as other:
        wrong = {"model": "messages", "messages": CHAT["messages"], "max_tokens": 16}
        to_anthropic().messages.create(**wrong, extra_body={"temperature": 9})
    assert "temperature" in str(other.error)


if __name__ == "__main__":
    with running() as proxy:
        row.run()
