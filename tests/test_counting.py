"""Every counter and histogram against 300 known requests, on real servers: what is told is what was done."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import TINY, Served, served, until

BLOCK, CONTEXT = 32, 256
QUEUED_REQUESTS, QUEUED_TOKENS = 8, 200
E = 40
"""The token of the letter E, which a bias makes the only one."""
ALWAYS_E = {"logit_bias": {str(E): 100}}
REASONS = ("stop", "length", "abort", "error")
EMULATED = ("device=inf2.xlarge", "emulated=true")

MEASURED = {
    "corepipe_steps", "corepipe_host_busy_seconds", "corepipe_device_busy_seconds", "corepipe_device_seconds",
    "corepipe_core_busy_seconds", "corepipe_core_flops", "corepipe_core_memory_traffic_bytes",
    "corepipe_core_engine_busy_seconds", "process_cpu_seconds", "corepipe_engine_process_cpu_seconds",
}  # fmt: skip
"""Counters that say how much work it was: of them it is known that they count."""

TIMES = {
    "time_to_first_token", "e2e_request_latency",
    *(f"request_{name}_time" for name in ("queue", "prefill", "decode", "inference")),
}  # fmt: skip


@dataclass(frozen=True)
class Sequence:
    """The counts of one sequence; `computed` tokens are the engine's, of which the client may get fewer."""

    prompt: int
    generated: int = 0
    most: int = 0
    reason: str = "length"
    cached: int = 0
    looked_up: bool = True
    computed: int | None = None
    cut: bool = False

    @property
    def by_engine(self) -> int:
        return self.generated if self.computed is None else self.computed

    @property
    def answered(self) -> bool:
        return self.reason in ("stop", "length")


@dataclass
class Known:
    """A request, its status, and its sequences by prompt."""

    body: dict[str, Any] | bytes | None
    prompts: list[list[Sequence]] = field(default_factory=list)
    status: int = 200
    path: str = "/v1/completions"
    rejected: bool = False
    handler: str = ""
    read: bool = True

    @property
    def data(self) -> bytes:
        if isinstance(self.body, dict):
            return msgspec.json.encode(self.body)
        return self.body or b""


def body(prompt: object, tokens: int, **more: object) -> dict[str, Any]:
    fixed = {"model": "tiny", "temperature": 0, "ignore_eos": True}
    return {**fixed, "prompt": prompt, "max_tokens": tokens, **more}


class Requests:
    """Known requests of every kind; no prompt of a block or more comes twice, but the one to be cached."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = count(100)
        self._long = self._ids(2 * BLOCK + 6)
        self._known = False

    def _ids(self, length: int) -> list[int]:
        number = next(self._number)
        return [
            number // 100 + 2,
            number % 100 + 2,
            *(self._random.randrange(2, 300) for _ in range(length - 2)),
        ]

    def plain(self, **more: object) -> Known:
        prompt, tokens = self._random.randrange(2, 90), self._random.randrange(1, 9)
        return Known(body(self._ids(prompt), tokens, **more), [[Sequence(prompt, tokens, tokens)]])

    def streamed(self) -> Known:
        return self.plain(stream=True, stream_options={"include_usage": self._random.random() < 0.5})

    def several(self) -> Known:
        prompts = [self._ids(self._random.randrange(2, BLOCK)) for _ in range(self._random.randrange(1, 3))]
        n, tokens = self._random.randrange(2, 4), self._random.randrange(1, 6)
        more = {"n": n, "stream": self._random.random() < 0.5}
        sequences = [[Sequence(len(prompt), tokens, tokens)] * n for prompt in prompts]
        return Known(body(prompts, tokens, **more), sequences)

    def stop_token(self) -> Known:
        """The stop token is drawn as soon as it may be: after `least` others."""
        least = self._random.randrange(4)
        asked = body(self._ids(5), 9, stop_token_ids=[E], min_tokens=least, **ALWAYS_E)
        return Known(asked, [[Sequence(5, least + 1, 9, "stop")]])

    def stop_string(self) -> Known:
        """It ends with the last token that may be generated, so that the engine ends there too."""
        asked = body(self._ids(5), 4, stop=["EEEE"], **ALWAYS_E)
        return Known(asked, [[Sequence(5, 4, 4, "stop")]])

    def echo(self) -> Known:
        """The prompt alone, and its logprobs: the engine generates a token that nobody gets."""
        asked = body(self._ids(40), 0, echo=True, logprobs=1)
        return Known(asked, [[Sequence(40, 0, 0, looked_up=False, computed=1)]])

    def cached(self) -> Known:
        found = 2 * BLOCK if self._known else 0
        self._known = True
        return Known(body(self._long, 3), [[Sequence(len(self._long), 3, 3, cached=found)]])

    def chat(self) -> Known:
        asked = {
            "model": "tiny", "max_tokens": 3, "temperature": 0, **ALWAYS_E,
            "messages": [{"role": "user", "content": "E" * self._random.randrange(1, 4)}],
        }  # fmt: skip
        prompt = -1  # as the answer says
        return Known(asked, [[Sequence(prompt, 3, 3)]], path="/v1/chat/completions")

    def invoked(self) -> Known:
        known = self.plain(stream=True)
        known.path = "/invocations"
        return known

    def no_json(self) -> Known:
        return Known(b'{"model": "tiny", ', status=400)

    def unknown_field(self) -> Known:
        return Known(body([5], 1, best_friend=1), status=400)

    def unknown_model(self) -> Known:
        return Known({**body([5], 1), "model": "other"}, status=404)

    def too_long(self) -> Known:
        return Known(body(self._ids(CONTEXT), 1), status=400)

    def too_many_choices(self) -> Known:
        return Known(body([5], 1, n=1000), status=400)

    def refused_by_the_engine(self) -> Known:
        """More tokens than a queue may ever hold."""
        prompt = QUEUED_TOKENS + 20
        return Known(body(self._ids(prompt), 4), [[Sequence(prompt, 0, 4, "error")]], 400)

    def no_route(self) -> Known:
        return Known({"a": 1}, status=404, path="/v1/moderations", handler="none", read=False)

    def asks_for_a_model(self) -> Known:
        name, status = self._random.choice([("tiny", 200), ("other", 404)])
        return Known(None, status=status, path=f"/v1/models/{name}", handler="/v1/models/{model}")

    def wrong_method(self) -> Known:
        return Known(None, status=405, path="/v1/completions")

    def cut(self) -> Known:
        """A stop string in the middle: how far the engine gets before it hears of it is not known."""
        asked = body(self._ids(5), 100, stop=["EE"], stream=self._random.random() < 0.5, **ALWAYS_E)
        return Known(asked, [[Sequence(5, 2, 100, "stop", cut=True)]])

    def queue_full(self) -> Known:
        """One sequence more than may wait: none is answered."""
        n = QUEUED_REQUESTS + 1
        asked = body(self._ids(5), 4, n=n, stream=self._random.random() < 0.5)
        return Known(asked, [[Sequence(5, 0, 4, "error")] * n], 429, rejected=True)


KINDS: dict[Callable[[Requests], Known], int] = {
    Requests.plain: 50, Requests.streamed: 40, Requests.several: 24, Requests.stop_token: 20,
    Requests.stop_string: 16, Requests.echo: 10, Requests.cached: 20, Requests.chat: 10, Requests.invoked: 10,
    Requests.no_json: 8, Requests.unknown_field: 8, Requests.unknown_model: 8, Requests.too_long: 8,
    Requests.too_many_choices: 6, Requests.refused_by_the_engine: 8, Requests.no_route: 4,
    Requests.asks_for_a_model: 6, Requests.wrong_method: 4,
}  # fmt: skip
UNENDED = {Requests.cut: 8, Requests.queue_full: 6}
"""Kinds of which the engine computes more than anybody gets, and how much is not known."""
LEFT = 26
"""Clients that leave before a token has come."""


def make(kinds: dict[Callable[[Requests], Known], int], seed: int) -> list[Known]:
    order = [kind for kind, times in kinds.items() for _ in range(times)]
    random.Random(seed).shuffle(order)
    requests = Requests(seed)
    return [kind(requests) for kind in order]


def play(client: httpx.Client, known: Known) -> int:
    """Sends it; bytes of the answer."""
    headers = {"content-type": "application/json"}
    method = "GET" if known.body is None else "POST"
    answer = client.request(method, known.path, content=known.data, headers=headers)
    assert answer.status_code == known.status, (known, answer.text)
    if known.path == "/v1/chat/completions":
        ((one,),) = known.prompts
        known.prompts = [[replace(one, prompt=answer.json()["usage"]["prompt_tokens"])]]
    return len(answer.content)


@dataclass
class Told:
    """The metrics of a server: values by sample and labels, and the families by kind."""

    values: dict[tuple[str, ...], float]
    kinds: dict[str, str]

    @classmethod
    def of(cls, server: Served) -> Told:
        families = list(text_string_to_metric_families(server.get("/metrics").text))
        values = {(s.name, *_labels(s.labels)): s.value for f in families for s in f.samples}
        return cls(values, {family.name: family.type for family in families})

    def histogram(self, name: str, *labels: str) -> tuple[float, float]:
        """(count, sum)."""
        return self.values[(f"{name}_count", *labels)], self.values[(f"{name}_sum", *labels)]


def _labels(labels: dict[str, str]) -> Iterator[str]:
    fixed = ("model_name", "engine")
    return (f"{name}={value}" for name, value in sorted(labels.items()) if name not in fixed)


def expected_of_the_engine(sequences: list[Sequence]) -> dict[tuple[str, ...], float]:
    """Counters of tokens: what is known of what the engine computed."""
    computed = [s for s in sequences if s.by_engine]
    prompt, cached = sum(s.prompt for s in computed), sum(s.cached for s in computed)
    looked_up = sum(s.prompt for s in computed if s.looked_up)
    return {
        ("vllm:prompt_tokens_total",): prompt,
        ("vllm:prompt_tokens_cached_total",): cached,
        ("vllm:prompt_tokens_by_source_total", "source=local_compute"): prompt - cached,
        ("vllm:prompt_tokens_by_source_total", "source=local_cache_hit"): cached,
        ("vllm:prompt_tokens_by_source_total", "source=external_kv_transfer"): 0,
        ("vllm:generation_tokens_total",): sum(s.by_engine for s in computed),
        ("vllm:prefix_cache_queries_total",): looked_up,
        ("vllm:prefix_cache_hits_total",): cached,
        ("vllm:num_preemptions_total",): 0,
        ("vllm:iteration_tokens_total_sum",): sum(s.prompt - s.cached + s.by_engine - 1 for s in computed),
        ("corepipe_late_steps_total", *EMULATED): 0,
    }


def expected_of_requests(requests: list[Known]) -> dict[tuple[str, ...], float]:
    """Counters of what became of requests."""
    reasons = Counter(s.reason for known in requests for prompt in known.prompts for s in prompt)
    return {
        **{("vllm:request_success_total", f"finished_reason={one}"): reasons[one] for one in REASONS},
        ("vllm:admission_rejections_total", "reason=queue_full"): sum(known.rejected for known in requests),
    }


def expected_histograms(requests: list[Known]) -> dict[str, tuple[int, float | None]]:
    """(count, sum) by histogram of vLLM's; a sum of times is not known."""
    prompts = [prompt for known in requests for prompt in known.prompts if all(s.answered for s in prompt)]
    answered = [s for prompt in prompts for s in prompt]
    with_token = [s for s in answered if s.generated]
    ended = [s for s in answered if not s.cut]

    def sizes(values: list[int]) -> tuple[int, float]:
        return len(values), sum(values)

    return {
        "time_to_first_token_seconds": (len(with_token), None),
        "inter_token_latency_seconds": (sum(s.generated - 1 for s in with_token), None),
        "request_time_per_output_token_seconds": (sum(s.generated > 1 for s in answered), None),
        "e2e_request_latency_seconds": (len(answered), None),
        "request_queue_time_seconds": (len(answered), None),
        "request_prefill_time_seconds": (len(with_token), None),
        "request_decode_time_seconds": (len(with_token), None),
        "request_inference_time_seconds": (len(with_token), None),
        "request_prompt_tokens": sizes([s.prompt for s in answered]),
        "request_generation_tokens": sizes([s.generated for s in answered]),
        "request_max_num_generation_tokens": sizes([max(s.generated for s in p) for p in prompts]),
        "request_params_max_tokens": sizes([s.most for s in answered]),
        "request_params_n": sizes([len(prompt) for prompt in prompts]),
        "request_num_preemptions": sizes([0 for _ in ended]),
        "request_prefill_kv_computed_tokens": sizes([s.prompt - s.cached for s in answered]),
    }


def expected_device_histograms(requests: list[Known]) -> dict[str, int]:
    """Counts by histogram of the device's."""
    ended = [s for known in requests for p in known.prompts for s in p if s.answered and not s.cut]
    names = ("time_to_first_token", *(f"{name}_time" for name in ("queue", "prefill", "decode", "inference")))
    return {
        **{f"{name}_seconds": len(ended) for name in names},
        "time_per_output_token_seconds": sum(s.by_engine > 1 for s in ended),
    }


def check_http(told: Told, requests: list[Known], sizes: list[int]) -> None:
    """HTTP requests by route, method and class of status."""
    counts, durations, received = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), Counter[str]()
    sent = Counter[str]()
    for known, size in zip(requests, sizes, strict=True):
        handler, method = known.handler or known.path, "GET" if known.body is None else "POST"
        counts[f"handler={handler}", f"method={method}", f"status={known.status // 100}xx"] += 1
        durations[f"handler={handler}", f"method={method}"] += 1
        received[handler] += len(known.data) if known.read else 0
        sent[handler] += size
    found = {key[1:]: value for key, value in told.values.items() if key[0] == "http_requests_total"}
    assert found == counts
    for labels, times in durations.items():
        assert told.histogram("http_request_duration_seconds", *labels)[0] == times
    assert told.histogram("http_request_duration_highr_seconds")[0] == len(requests)
    for handler in received:
        times = sum(value for labels, value in counts.items() if labels[0] == f"handler={handler}")
        label = f"handler={handler}"
        assert told.histogram("http_request_size_bytes", label) == (times, received[handler])
        assert told.histogram("http_response_size_bytes", label) == (times, sent[handler])
    assert all(
        value == 0 for key, value in told.values.items() if key[0] == "corepipe_connections_refused_total"
    )


def check_requests(told: Told, requests: list[Known]) -> None:
    """Allows for answers cut at a stop string: the engine may have reported their end by then, so that its
    own figures count, or not."""
    expected = expected_of_requests(requests)
    assert {key: told.values[key] for key in expected} == expected
    cut = sum(s.cut for known in requests for prompt in known.prompts for s in prompt)
    for name, (times, total) in expected_histograms(requests).items():
        found = told.histogram(f"vllm:{name}")
        more = cut if name == "request_num_preemptions" else 0
        assert times <= found[0] <= times + more, name
        assert found[1] == total if total is not None else found[1] > 0, name
    for name, times in expected_device_histograms(requests).items():
        found = told.histogram(f"corepipe_device_{name}", *EMULATED)
        assert times <= found[0] <= times + cut, name
    restarts = [value for key, value in told.values.items() if key[0] == "corepipe_engine_restarts_total"]
    assert restarts == [0] * 5


def counted(server: Served, ended: dict[tuple[str, ...], float]) -> bool:
    """True if the server has ended these requests; it then tells the engine, whose figures come later."""
    values = Told.of(server).values
    return all(values[key] == value for key, value in ended.items())


def idle(server: Served) -> bool:
    waiting = (server.metric(f"vllm:num_requests_{state}") for state in ("running", "waiting"))
    return sum(waiting) == 0 and server.metric("corepipe_kv_blocks_held") == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    limits = ("--max-num-queued-reqs", QUEUED_REQUESTS, "--max-num-queued-tokens", QUEUED_TOKENS)
    with served(TINY, "--served-model-name", "tiny", *limits) as running:
        yield running


@pytest.fixture(scope="module")
def done(server: Served) -> tuple[list[Known], list[int]]:
    """The requests of which all is known, and the bytes that came back."""
    requests = make(KINDS, 12)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        return requests, [play(client, known) for known in requests]


def test_each_counter_and_histogram_is_exact(server: Served, done: tuple[list[Known], list[int]]) -> None:
    requests, sizes = done
    told = Told.of(server)
    expected = expected_of_the_engine([s for known in requests for prompt in known.prompts for s in prompt])
    assert {key: told.values[key] for key in expected} == expected
    assert told.values["vllm:iteration_tokens_total_count",] == told.values["corepipe_steps_total",]
    check_requests(told, requests)
    check_http(told, requests, sizes)


CONSTRAINED = (
    "constrained_requests", "constraint_refusals", "constraint_failures",
    "grammar_check_seconds", "grammar_compile_seconds", "grammar_mask_seconds",
)  # fmt: skip
"""tests/serving/api/test_structured.py and tests/test_constrained.py have them."""


def test_none_is_left_out(server: Served, done: tuple[list[Known], list[int]]) -> None:
    """A counter or histogram that is added must be expected here, too."""
    requests, _ = done
    told = Told.of(server)
    sequences = [s for known in requests for prompt in known.prompts for s in prompt]
    known = {key[0].removesuffix("_total") for key in expected_of_the_engine(sequences)}
    known |= {key[0].removesuffix("_total") for key in expected_of_requests(requests)}
    known |= {f"vllm:{name}" for name in expected_histograms(requests)}
    known |= {f"corepipe_device_{name}" for name in expected_device_histograms(requests)}
    known |= {"vllm:iteration_tokens_total", "corepipe_engine_restarts", "corepipe_connections_refused"}
    known |= {"corepipe_overflows"}  # tests/test_overflow.py
    known |= {"corepipe_fleet_refusals"}  # tests/serving/fleet/test_client.py
    of_guesses = {"drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"}
    known |= {f"vllm:spec_decode_num_{name}" for name in of_guesses}  # tests/test_speculation.py
    known |= {"corepipe_padded_tokens"}  # tests/engine/test_encoding.py
    known |= {f"corepipe_{name}" for name in CONSTRAINED}
    known |= {"http_requests", "http_request_duration_seconds", "http_request_duration_highr_seconds"}
    counting = {name for name, kind in told.kinds.items() if kind in ("counter", "histogram")}
    assert counting == (known | MEASURED) - {"vllm:iteration_tokens_total_sum"}
    for name in MEASURED:
        assert sum(v for key, v in told.values.items() if key[0] == f"{name}_total") > 0, name


def test_times_are_of_one_clock(server: Served, done: tuple[list[Known], list[int]]) -> None:
    """Sums of times fit each other: those in the queue, of prefill and of decoding are parts of the whole."""
    assert done
    told = Told.of(server)
    seconds = {name: told.histogram(f"vllm:{name}_seconds")[1] for name in TIMES}
    parts = {name: seconds[f"request_{name}_time"] for name in ("queue", "prefill", "decode", "inference")}
    assert parts["inference"] == pytest.approx(parts["prefill"] + parts["decode"])
    assert parts["queue"] + parts["inference"] < seconds["e2e_request_latency"]
    assert parts["prefill"] < seconds["time_to_first_token"] < seconds["e2e_request_latency"]
    assert told.histogram("vllm:inter_token_latency_seconds")[1] == pytest.approx(parts["decode"])
    device = {
        name: told.histogram(f"corepipe_device_{name}_seconds", *EMULATED)[1]
        for name in ("time_to_first_token", "queue_time", "prefill_time", "decode_time", "inference_time")
    }
    assert device["queue_time"] + device["prefill_time"] == pytest.approx(device["time_to_first_token"])
    assert device["inference_time"] == pytest.approx(device["prefill_time"] + device["decode_time"])


def test_what_is_given_up_is_in_no_histogram(server: Served, done: tuple[list[Known], list[int]]) -> None:
    """The engine has computed something for these, too: its counters are at least what clients got.

    Those that fill the queue come last: none can tell when the server has heard that it is empty."""
    before, unended = Told.of(server), sorted(make(UNENDED, 13), key=lambda known: known.rejected)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number, known in enumerate(unended, 1):
            play(client, known)
            ended = expected_of_requests([*done[0], *unended[:number]])
            assert until(lambda ended=ended: counted(server, ended)), "the next one comes after its aborts"
            assert until(lambda: idle(server)), "and finds an empty queue"
    sequences = [s for known in unended for prompt in known.prompts for s in prompt]
    cut = [s for s in sequences if s.cut]
    got, sent = sum(s.generated for s in cut), sum(s.prompt for s in cut)

    def more(name: str) -> float:
        return server.metric(name) - before.values[name,]

    assert until(lambda: more("vllm:generation_tokens_total") >= got)  # told now and then
    assert until(lambda: more("vllm:prompt_tokens_total") >= sent)
    told, requests = Told.of(server), [*done[0], *unended]
    check_requests(told, requests)
    new = {key: told.values[key] - before.values[key] for key in told.values if key in before.values}
    assert got <= new["vllm:generation_tokens_total",] <= sum(s.most for s in sequences)
    assert new["vllm:iteration_tokens_total_count",] == new["corepipe_steps_total",]


def test_who_leaves_counts_as_aborted_and_nowhere_else() -> None:
    """A step takes hours, so that all of them leave before their first token."""
    with served(TINY, "--served-model-name", "tiny", "--clock", "device", "--time-scale", 1e9) as server:
        host, port = server.url.removeprefix("http://").split(":")
        left = []
        for number in range(LEFT):
            n = 1 + number % 3
            data = msgspec.json.encode(body([5, 6, 7], 4, n=n, stream=number % 2 == 0))
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            left.append((n, socket.create_connection((host, int(port)))))
            left[-1][1].sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        sequences = sum(n for n, _ in left)

        def open_ones() -> float:
            return sum(server.metric(f"vllm:num_requests_{state}") for state in ("running", "waiting"))

        assert until(lambda: open_ones() == sequences)
        for _, connection in left:
            connection.close()
        aborted = ("vllm:request_success_total", "finished_reason=abort")
        assert until(lambda: Told.of(server).values[aborted] == sequences)
        told = Told.of(server)
        nothing = {**expected_of_the_engine([]), **expected_of_requests([]), aborted: sequences}
        for name in ("vllm:prefix_cache_queries_total", "vllm:iteration_tokens_total_sum"):
            del nothing[name,]  # of those that had begun
        assert {key: told.values[key] for key in nothing} == nothing
        for name in expected_histograms([]):
            assert told.histogram(f"vllm:{name}") == (0, 0), name
        for name in expected_device_histograms([]):
            assert told.histogram(f"corepipe_device_{name}", *EMULATED) == (0, 0), name
        assert not any(key[0] == "http_requests_total" for key in told.values), "none was answered"


def test_preemptions_of_requests_are_the_engines() -> None:
    """The cache holds one full sequence: eight at once must give way to each other."""
    with served(TINY, "--num-blocks", 8, "--served-model-name", "tiny") as server:
        prompts = [[5 + number] * 40 for number in range(8)]
        assert server.post("/v1/completions", json=body(prompts, 150)).status_code == 200
        told = Told.of(server)
        assert told.values["vllm:num_preemptions_total",] > 0
        of_requests = told.histogram("vllm:request_num_preemptions")
        assert of_requests == (8, told.values["vllm:num_preemptions_total",])
        assert told.values["vllm:prompt_tokens_total",] == 8 * 40
        assert told.values["vllm:generation_tokens_total",] == 8 * 150
