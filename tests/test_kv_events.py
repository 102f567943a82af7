"""A real server that publishes its cache's events, and a real subscriber that keeps the stored blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from tests.engine.kv_reader import AllBlocksCleared, BlockStored, Reader
from tests.servers import PATIENCE_SECONDS, TINY, Served, metric_of, served, until

SIZE = 16
KEY = {"authorization": "Bearer k1"}


class Gateway:
    """Subscribes, asks for earlier batches, and keeps the blocks of the server's cache."""

    def __init__(self, server: Served, folder: Path) -> None:
        self.server = server
        self.reader = Reader()
        self.events: list[object] = []
        self._context = zmq.Context()
        self._live = self._socket(zmq.SUB, f"ipc://{folder}/events")
        self._live.subscribe(b"kv@")
        self._replay = self._socket(zmq.DEALER, f"ipc://{folder}/replay")
        self._next = 0

    def close(self) -> None:
        for one in (self._live, self._replay):
            one.close(linger=0)
        self._context.term()

    def until_stored(self, tokens: list[int], salt: str = "") -> None:
        """Reads until all full blocks of these tokens can be found."""
        wanted = {(salt, tuple(tokens[:end])) for end in range(SIZE, len(tokens) + 1, SIZE)}
        while not wanted <= self.reader.found():
            self.read()

    def read(self) -> None:
        """Returns the next batch; missed batches before it come first."""
        topic, number, batch = self._live.recv_multipart()
        assert topic == b"kv@10.0.0.7:8000@tiny"
        if (found := int.from_bytes(number, "big")) > self._next:
            self.ask()
        if found == self._next:
            self._take(found, batch)

    def ask(self) -> None:
        """Asks for all batches that are kept and were not read."""
        self._replay.send_multipart([b"", self._next.to_bytes(8, "big")])
        while (frames := self._replay.recv_multipart())[3]:
            self._take(int.from_bytes(frames[2], "big"), frames[3])

    def _take(self, number: int, batch: bytes) -> None:
        assert number == self._next
        self._next += 1
        self.events += self.reader.read(batch)

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        one = self._context.socket(kind)
        one.setsockopt(zmq.RCVTIMEO, int(PATIENCE_SECONDS * 1000))
        one.connect(address)
        return one

    def metric(self, name: str) -> float:
        return metric_of(self.server.get("/metrics", headers=KEY).text, name)

    def complete(self, prompt: str | list[int], **more: object) -> list[int]:
        """Returns the tokens of prompt and answer."""
        return self.complete_all([prompt], **more)[0]

    def complete_all(self, prompt: list[str] | list[list[int]], **more: object) -> list[list[int]]:
        """Returns the same for prompts that come at once."""
        body = {
            "prompt": prompt,
            "max_tokens": 2,
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            **more,
        }
        answer = self.server.post(
            "/v1/completions", json={"model": "tiny", **body}, headers=KEY, timeout=PATIENCE_SECONDS
        )
        assert answer.status_code == 200, answer.text
        return [choice["prompt_token_ids"] + choice["token_ids"] for choice in answer.json()["choices"]]


@contextmanager
def gateway(folder: Path, *flags: object) -> Iterator[Gateway]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
        "topic": "kv@10.0.0.7:8000@tiny",
    }
    named = ("--served-model-name", "tiny", "--api-key", "k1", "--api-key", "k2", "--threads", 1)
    events = ("--kv-events-config", json.dumps(config), "--block-size", SIZE)
    with served(TINY, *named, *events, *flags) as server:
        one = Gateway(server, folder)
        try:
            yield one
        finally:
            one.close()


def computed(tokens: list[int]) -> list[int]:
    """Returns the tokens that are in full blocks; the last token of an answer is not computed."""
    return tokens[: (len(tokens) - 1) // SIZE * SIZE]


def test_what_is_stored_is_what_was_asked_and_the_same_again_stores_nothing(tmp_path: Path) -> None:
    with gateway(tmp_path, "--data", 2) as one:
        one.ask()
        assert one.events == [AllBlocksCleared()]
        first = one.complete("The same beginning, of many words. " * 4)
        one.until_stored(computed(first))
        rendered = one.server.post(
            "/v1/completions/render",
            json={"model": "tiny", "prompt": "The same beginning, of many words. " * 4},
            headers=KEY,
        ).json()[0]["token_ids"]
        assert first[: len(rendered)] == rendered
        before = one.reader.stored
        assert one.complete(rendered) == first
        other = one.complete("Something else, and so it is stored after what the second one did.")
        one.until_stored(computed(other))
        stored = [
            token for event in one.events if isinstance(event, BlockStored) for token in event.token_ids
        ]
        assert one.reader.stored - before == len(computed(other)) // SIZE
        assert stored == [*computed(first), *computed(other)]
        salted = one.complete(rendered, cache_salt="mine")
        one.until_stored(computed(salted), "mine")
        late = Gateway(one.server, tmp_path)
        for each in (one, late):
            each.ask()
        assert late.reader.found() == one.reader.found()
        late.until_stored(computed(late.complete("And then another one came, which all could hear. " * 3)))
        late.close()


def test_preemption_and_eviction_remove_what_they_take(tmp_path: Path) -> None:
    """The blocks that the events leave stored are those that the pool still has, by its own count. At a
    device's pace, slowed down, so that the last of the requests has come long before the first is done; where
    it has not, they are sent again."""
    paced = ("--clock", "device", "--time-scale", 10)
    with gateway(tmp_path, "--num-blocks", 24, "--max-model-len", 256, *paced) as one:
        prompts = [[20 + at] * 40 for at in range(8)]
        answers: list[list[int]] = []

        def preempted() -> bool:
            answers[:] = one.complete_all(prompts, max_tokens=150)
            return one.metric("vllm:num_preemptions_total") > 0

        assert until(preempted)
        last = one.complete([99] * 200)
        one.ask()  # what a request has stored is published before its answer goes out
        stored = [
            token for event in one.events if isinstance(event, BlockStored) for token in event.token_ids
        ]
        assert stored[-len(computed(last)) :] == computed(last)
        assert one.reader.removed > 0
        assert not {("", tuple(computed(answer))) for answer in answers} <= one.reader.found()
        found = len(one.reader.found())
        assert until(lambda: one.metric("corepipe_kv_blocks_cached") == found)  # told now and then
        assert one.metric("corepipe_kv_blocks_held") == 0
