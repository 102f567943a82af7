"""A stored response that a kill of the server cut goes on at the next start, byte for byte."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.servers import TINY, Served, served, until
from tests.serving.api.responses.support import events_of, timeless

PLACE = {"type": "object", "properties": {"a": {"enum": ["x" * 40]}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "parameters": PLACE, "strict": True}
ASKED: dict[str, dict[str, Any]] = {
    "drawn": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "seeded": {"seed": 7, "stop": ["zzz"]},
    "formed": {"text": {"format": {"type": "json_schema", "name": "n", "schema": PLACE}}},
    "background": {"background": True, "temperature": 1.5},
}
SLOW = ("--clock", "device", "--time-scale", 4000)
"""A fifth of a second for each token, so that a test can end the server between two of them."""


def body_of(kind: str) -> dict[str, Any]:
    return {"input": "Hello", "max_output_tokens": 40, "stream": True, "ignore_eos": True, **ASKED[kind]}


class Client(threading.Thread):
    """Reads a stream until the server is gone."""

    def __init__(self, server: Served, kind: str) -> None:
        super().__init__()
        self._url = f"{server.url}/v1/responses"
        self._body = body_of(kind)
        self.text = ""

    def run(self) -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
            httpx.stream("POST", self._url, json=self._body) as answer,
        ):
            for piece in answer.iter_text():
                self.text += piece

    @property
    def whole_events(self) -> str:
        return self.text[: self.text.rfind("\n\n") + 2]


def cut_short(store: Path) -> dict[str, str]:
    """The events that clients of each kind have read when their server is killed."""
    with served(TINY, "--served-model-name", "tiny", "--store-dir", store, *SLOW) as server:
        clients = {kind: Client(server, kind) for kind in ASKED}
        for client in clients.values():
            client.start()
        assert until(lambda: all("output_text.delta" in one.text for one in clients.values()))
        server.end(signal.SIGKILL)
        for client in clients.values():
            client.join()
    return {kind: client.whole_events for kind, client in clients.items()}


def test_what_a_kill_cuts_goes_on_byte_for_byte(tmp_path: Path) -> None:
    seen = cut_short(tmp_path)
    with served(TINY, "--served-model-name", "tiny", "--store-dir", tmp_path) as server:
        for kind, known in seen.items():
            events = events_of(known)
            assert "response.incomplete" not in known
            name = events[0]["response"]["id"]
            rest = server.get(
                f"/v1/responses/{name}", params={"stream": "true", "starting_after": len(events) - 1}
            )
            whole = server.get(f"/v1/responses/{name}", params={"stream": "true"})
            assert whole.text == known + rest.text, rest.text + "".join(server.stderr)
            last = events_of(whole.text)[-1]["response"]
            assert server.get(f"/v1/responses/{name}").json() == last
            assert last["created_at"] == events[0]["response"]["created_at"]
            if kind == "seeded":  # as a server that nobody killed answers
                uncut = events_of(server.post("/v1/responses", json=body_of(kind)).text)[-1]["response"]
                assert timeless(uncut)["output"] == timeless(last)["output"]


def test_other_settings_do_not_go_on(tmp_path: Path) -> None:
    seen = cut_short(tmp_path)
    with served(TINY, "--served-model-name", "tiny", "--store-dir", tmp_path, "--dtype", "fp32") as server:
        for known in seen.values():
            failed = ended(server, events_of(known)[0]["response"]["id"])
            assert failed["status"] == "failed"
            assert "other settings" in failed["error"]["message"]


def ended(server: Served, name: str) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []

    def is_over() -> bool:
        answers.append(server.get(f"/v1/responses/{name}").json())
        return answers[-1]["status"] not in ("queued", "in_progress")

    assert until(is_over)
    return answers[-1]
