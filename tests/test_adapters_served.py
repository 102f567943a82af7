"""LoRA adapters behind a real server: whose answers are whose; loads and unloads beside answers; kills."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.lora import AdapterRef, LoadAdapter
from corepipe.engine.messages import Submit
from corepipe.engine.params import SamplingParams
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.errors import UserError
from corepipe.library.llm import LLM
from corepipe.models import registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Linear
from tests.peft_adapters import random_peft
from tests.servers import TINY, Served, run, served, until
from tests.support import answers, killed

NAMES = ("a", "b", "c")
PROMPTS = [[7, 40 + n, *range(60, 100)] for n in range(6)]
"""Longer than a KV block, and alike from the third token on."""
TOKENS = 24
GREEDY = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
FORMAT = "bf16"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def write(folder: Path, seed: int, rank: int = 4) -> Path:
    """Writes an adapter for the tiny model, drawn from `seed`."""
    model = registry.load(TINY)
    return random_peft(model, model.graph(FORMATS["fp32"], 64), rank, seed).write(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the adapters a, b and c, and more for single tests."""
    made: Path = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate((*NAMES, "on-demand", "other")):
        write(made / name, seed)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    modules = [part for name in NAMES for part in ("--lora-modules", f"{name}={folder / name}")]
    with serving(*modules, "--lora-dir", folder, "--max-loras", 6) as running:
        yield running


@contextmanager
def serving(*flags: object, spare: bool = False) -> Iterator[Served]:
    more = ("--served-model-name", "tiny", "--dtype", FORMAT, "--max-num-seqs", 8, "--num-blocks", 600)
    with served(TINY, *more, *flags, spare=spare) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> Mapping[str, list[str]]:
    """The library's answers of each model to each prompt, one by one."""
    return answers_of(tuple((name, folder / name) for name in NAMES))


@cache
def answers_of(adapters: tuple[tuple[str, Path], ...]) -> Mapping[str, list[str]]:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(TINY, format=FORMAT, enable_lora=True) as llm:
        found = {"tiny": [llm.generate([prompt], params)[0].text for prompt in PROMPTS]}
        for name, path in adapters:
            llm.load_adapter(name, path)
            each = [llm.generate([prompt], params, adapter=name) for prompt in PROMPTS]
            found[name] = [one[0].text for one in each]
            llm.unload_adapter(name)
    return found


def ask(server: Served, model: str, prompt: Sequence[int], **more: object) -> httpx.Response:
    body = {"model": model, "prompt": prompt, **GREEDY, **more}
    return server.post("/v1/completions", json=body, timeout=None)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def load(server: Served, name: str, path: object, **more: object) -> httpx.Response:
    return server.post(LOAD, json={"lora_name": name, "lora_path": str(path), **more})


def unload(server: Served, name: str) -> httpx.Response:
    return server.post(UNLOAD, json={"lora_name": name})


class Stream:
    """A streamed answer, read as far as its first text."""

    def __init__(self, server: Served, model: str, prompt: Sequence[int], **more: object) -> None:
        body = {"model": model, "prompt": prompt, **GREEDY, "stream": True, **more}
        self._context = httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=None)
        self._answer = self._context.__enter__()
        self._lines = self._answer.iter_lines()
        self._text = self._next() or ""

    def rest(self) -> str:
        """Reads the stream to its end; returns the whole text."""
        while (more := self._next()) is not None:
            self._text += more
        self._context.__exit__(None, None, None)
        return self._text

    def _next(self) -> str | None:
        for line in self._lines:
            if line == "data: [DONE]":
                return None
            if line:
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text: str = event["choices"][0]["text"]
                return text
        return None


def test_answers_are_the_librarys_and_each_adapters_own(
    server: Served, expected: Mapping[str, list[str]]
) -> None:
    for model, texts in expected.items():
        assert [text_of(ask(server, model, prompt)) for prompt in PROMPTS] == texts
        assert Stream(server, model, PROMPTS[0]).rest() == texts[0]
    assert len({tuple(texts) for texts in expected.values()}) == 1 + len(NAMES)


def test_a_hundred_mixed_requests_are_each_as_alone(
    server: Served, expected: Mapping[str, list[str]]
) -> None:
    draw = random.Random(5)
    asked = [(draw.choice(["tiny", *NAMES]), draw.randrange(len(PROMPTS))) for _ in range(100)]
    with ThreadPoolExecutor(16) as threads:
        answers = threads.map(lambda one: text_of(ask(server, one[0], PROMPTS[one[1]])), asked)
        assert list(answers) == [expected[model][number] for model, number in asked]


def test_chats_and_messages_take_an_adapter(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    chats = {
        model: server.post("/v1/chat/completions", json={"model": model, **body}).json()
        for model in ("tiny", "a")
    }
    assert [chats[model]["model"] for model in chats] == ["tiny", "a"]
    texts = {model: chats[model]["choices"][0]["message"]["content"] for model in chats}
    assert texts["tiny"] != texts["a"]
    prints = {chats[model]["system_fingerprint"] for model in chats}
    assert len(prints) == 2, "an adapter is a configuration of its own"
    message = server.post("/v1/messages", json={"model": "a", **body}).json()
    assert (message["model"], message["content"][0]["text"]) == ("a", texts["a"])


def test_no_prefix_is_shared_between_adapters(server: Served) -> None:
    """Nor with the model as it is; with the same adapter it is found."""
    prompt = [9, *range(100, 180)]

    def cached(model: str) -> int:
        usage = ask(server, model, prompt).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached(model) for model in ("tiny", *NAMES)] == [0] * 4
    assert all(cached(model) > 0 for model in ("tiny", *NAMES))


def test_cards_placement_and_metrics_tell_of_adapters(server: Served, folder: Path) -> None:
    cards = {card["id"]: card for card in server.get("/v1/models").json()["data"]}
    assert {*cards} >= {"tiny", *NAMES}
    assert (cards["a"]["root"], cards["a"]["parent"]) == (str(folder / "a"), "tiny")
    assert cards["tiny"]["parent"] is None
    assert server.get("/v1/models/b").json() == cards["b"]
    placed = server.get("/v1/placement").json()
    told = {one["name"]: one for one in placed["lora_adapters"]}
    assert (placed["max_loras"], told["a"]["rank"], told["a"]["bytes"] > 0) == (6, 4, True)
    labels = {'max_lora="6"', 'running_lora_adapters=""', 'waiting_lora_adapters=""'}
    assert labels <= lora_labels(server)
    seen = threading.Event()

    def ask_on() -> None:
        while not seen.is_set():
            ask(server, "a", PROMPTS[0], max_tokens=200)

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask_on)
        assert until(lambda: 'running_lora_adapters="a"' in lora_labels(server))
        seen.set()
        asking.result()


def lora_labels(server: Served) -> set[str]:
    (line,) = (
        one for one in server.get("/metrics").text.splitlines() if one.startswith("vllm:lora_requests_")
    )
    return set(line[line.index("{") + 1 : line.index("}")].split(","))


def test_an_adapter_is_loaded_and_unloaded_beside_answers(
    server: Served, folder: Path, expected: Mapping[str, list[str]]
) -> None:
    streams = [Stream(server, model, PROMPTS[0]) for model in ("tiny", "a")]
    loaded = load(server, "late", folder / "b")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'late' added successfully.")
    assert text_of(ask(server, "late", PROMPTS[1])) == expected["b"][1]
    taken = load(server, "late", folder / "c")
    assert (taken.status_code, "already been loaded" in taken.text) == (400, True)
    streams.append(Stream(server, "late", PROMPTS[2]))
    gone = unload(server, "late")
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'late' removed successfully.")
    missing = ask(server, "late", PROMPTS[0])
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert unload(server, "late").status_code == 404
    texts = [stream.rest() for stream in streams]
    assert texts == [expected["tiny"][0], expected["a"][0], expected["b"][2]]
    assert text_of(ask(server, "b", PROMPTS[1])) == expected["b"][1], "b has the same content and stays"


def test_a_name_loaded_in_place_has_its_new_content_and_finds_nothing_of_the_old(
    server: Served, folder: Path, tmp_path: Path, expected: Mapping[str, list[str]]
) -> None:
    path = folder / "changing"
    shutil.copytree(folder / "a", path)
    assert load(server, "changing", path).status_code == 200
    stream = Stream(server, "changing", PROMPTS[3])
    shutil.copytree(folder / "c", path, dirs_exist_ok=True)
    assert load(server, "changing", path, load_inplace=True).status_code == 200
    answer = ask(server, "changing", PROMPTS[3])
    assert (text_of(answer), stream.rest()) == (expected["c"][3], expected["a"][3])
    assert unload(server, "changing").status_code == 200


def test_a_request_loads_an_adapter_of_the_directory(server: Served, folder: Path) -> None:
    (texts,) = (one for name, one in answers_of((("x", folder / "on-demand"),)).items() if name == "x")
    with ThreadPoolExecutor(4) as threads:  # all at once: it is loaded once
        got = threads.map(lambda prompt: text_of(ask(server, "on-demand", prompt)), PROMPTS)
        assert list(got) == texts
    assert "on-demand" in {card["id"] for card in server.get("/v1/models").json()["data"]}


def test_an_engine_that_is_killed_changes_no_answer(folder: Path, expected: Mapping[str, list[str]]) -> None:
    """Its successor loads the adapters again: those that are served, and that of an answer under way which
    was unloaded meanwhile. One whose files have changed since is served no more."""
    gone, long = folder.parent / "gone", {"max_tokens": 200, "temperature": 1, "seed": 7}
    shutil.copytree(folder / "c", gone)
    flags = [part for name in ("a", "b") for part in ("--lora-modules", f"{name}={folder / name}")]
    with serving(*flags, "--lora-dir", folder.parent, spare=True) as server:
        assert load(server, "changed", gone).status_code == 200
        assert load(server, "temporary", folder / "on-demand").status_code == 200
        models = ("tiny", "a", "temporary")
        texts = [text_of(ask(server, model, PROMPTS[4], **long)) for model in models]
        streams = [Stream(server, model, PROMPTS[4], **long) for model in models]
        assert unload(server, "temporary").status_code == 200
        shutil.copytree(folder / "b", gone, dirs_exist_ok=True)
        server.engine().kill()
        assert [one.rest() for one in streams] == texts
        assert until(lambda: server.metric("corepipe_engine_restarts_total", 'reason="killed"') == 1)
        assert until(lambda: server.get("/health").status_code == 200)
        for name in ("tiny", "a", "b"):
            assert text_of(ask(server, name, PROMPTS[5])) == expected[name][5]
        for name in ("changed", "temporary"):
            assert ask(server, name, PROMPTS[5]).status_code == 404
        assert "changed is not served any more" in "".join(server.stderr)


def test_an_engine_that_is_killed_again_and_again_goes_on_with_the_same_tokens(folder: Path) -> None:
    modules = tuple(f"{name}={folder / name}" for name in NAMES)
    config = EngineConfig(model=str(TINY), format=FORMAT, threads=1, lora_modules=modules, seed=3)
    with closing(Driver(assemble(config, lambda _what, _done: None))) as driver:
        reports = [driver.load_adapter(LoadAdapter(name, str(folder / name))) for name in NAMES]
        refs = [None, *(AdapterRef(one.name, one.digest) for one in reports)]
        asked = [
            Submit(f"r{n}", PROMPTS[n % 6], 150, TokenSampling(seed=n), adapter=refs[n % 4]) for n in range(8)
        ]
        wanted = {name: answer.tokens for name, answer in answers(driver, asked).items()}
    outputs = killed(config, asked, kills=3)
    assert {name: [t for output in of for t in output.tokens] for name, of in outputs.items()} == wanted


def test_what_is_no_adapter_is_refused_and_costs_nothing(
    server: Served, folder: Path, tmp_path: Path
) -> None:
    """Hostile names, paths and files: each gets an error that says what is wrong."""
    before = server.get("/v1/models").json()["data"]
    for path, status in hostile(folder, tmp_path):
        refused = load(server, "hostile", path)
        assert refused.status_code == status, (path, refused.text)
        assert refused.json()["error"]["param"] == "lora_path"
        assert len(refused.text) < 2000
    asked = ask(server, "dora", PROMPTS[0])
    assert (asked.status_code, asked.json()["error"]["param"]) == (400, "model")
    for name in ("../a", "a/../b", "/etc", "", ".a", "a\0b", "a" * 129, "ä", "tiny/x"):
        refused = load(server, name, "a")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora_name"), name
        assert ask(server, name, PROMPTS[0]).status_code in {400, 404}
    assert load(server, "tiny", folder / "a").status_code == 400, "the model's own name"
    assert unload(server, "tiny").status_code == 404
    assert server.post(LOAD, json={"lora_name": "x"}).status_code == 400
    assert (
        server.post(LOAD, json={"lora_name": "x", "lora_path": "a", "foo": 1}).json()["error"]["param"]
        == "foo"
    )
    assert server.get("/v1/models").json()["data"] == before
    assert server.get("/health").status_code == 200
    assert "Traceback" not in "".join(server.stderr)


def hostile(folder: Path, outside: Path) -> Iterator[tuple[object, int]]:
    """Yields paths below `folder` and elsewhere, and the status of loading from each."""
    write(outside / "elsewhere", 9)
    (folder / "link").symlink_to(outside / "elsewhere")
    (folder / "loop").symlink_to(folder / "loop")
    yield from ((path, 403) for path in ("/etc", "../..", outside / "elsewhere", "link", "a/../../x"))
    yield from (("a\0b", 400), ("x" * 4000, 400), ("loop", 400), ("missing", 404), (".", 404))
    for name, break_it in BROKEN.items():
        shutil.copytree(folder / "a", folder / name)
        break_it(folder / name)
        yield name, 400


def _config(**changes: object) -> Callable[[Path], None]:
    """Changes keys of an adapter's configuration."""

    def change(path: Path) -> None:
        file = path / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes an adapter's tensors."""

    def changed(path: Path) -> None:
        tensors = load_file(path / WEIGHTS)
        change(tensors)
        save_file(tensors, path / WEIGHTS)

    return changed


def _file(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path / WEIGHTS).write_bytes(content)  # type: ignore[func-returns-value]


def _first(value: float) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: next(iter(tensors.values())).fill(value)


def _many() -> bytes:
    """Returns a file of 100,000 tensors."""
    place = {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}
    header = json.dumps({f"base_model.model.x.{n}.lora_A.weight": place for n in range(100_000)}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


WEIGHTS = "adapter_model.safetensors"
BROKEN: Mapping[str, Callable[[Path], object]] = {
    "no-json": lambda path: (path / "adapter_config.json").write_text("{" * 100_000),
    "dora": _config(use_dora=True),
    "rank-zero": _config(r=0),
    "rank-high": _config(r=400),
    "rank-text": _config(r="many"),
    "alpha-nan": lambda path: (path / "adapter_config.json").write_text(
        '{"peft_type":"LORA","r":4,"lora_alpha":NaN}'
    ),
    "other-kind": _config(peft_type="IA3"),
    "no-tensors": lambda path: (path / WEIGHTS).unlink(),
    "pickle": lambda path: (path / WEIGHTS).rename(path / "adapter_model.bin"),
    "empty": _file(b""),
    "header-bomb": _file(b"\xff" * 7 + b"\x7f"),
    "header-huge": _file((1 << 40).to_bytes(8, "little") + b"{}"),
    "nan": _tensors(_first(float("nan"))),
    "infinity": _tensors(_first(float("inf"))),
    "many": _file(_many()),
    "keys": _tensors(lambda tensors: tensors.update({"../../etc/passwd": np.zeros(1, np.float32)})),
    "half": _tensors(lambda tensors: tensors.pop(next(iter(tensors)))),
}


def test_only_the_admin_port_loads_from_anywhere(folder: Path) -> None:
    with serving("--enable-lora") as server:
        refused = load(server, "a", folder / "a")
        assert (refused.status_code, "--lora-dir, or --admin-port" in refused.text) == (403, True)
    with serving("--enable-lora", "--admin-port", 0, "--admin-api-key", "k") as server:
        assert load(server, "a", folder / "a").status_code == 404, "it is on the admin port"
        admin = admin_of(server)
        body = {"lora_name": "a", "lora_path": str(folder / "a")}
        assert httpx.post(admin + LOAD, json=body).status_code == 401
        loaded = httpx.post(admin + LOAD, json=body, headers={"authorization": "Bearer k"})
        assert loaded.status_code == 200
        assert ask(server, "a", PROMPTS[0]).status_code == 200


ADMIN = re.compile(r"metrics, placement and control: (http://[^;\s]+)")


def admin_of(server: Served) -> str:
    """Returns the URL of the admin port, whose line comes after that of the public one."""
    assert until(lambda: ADMIN.search("".join(server.stderr)) is not None)
    found = ADMIN.search("".join(server.stderr))
    assert found is not None
    return found[1]


def test_a_server_without_adapters_says_so(tmp_path: Path) -> None:
    with served(TINY) as server:
        refused = load(server, "a", tmp_path)
        assert (refused.status_code, "--enable-lora" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora-modules", "a"], "NAME=PATH"),
        (["--lora-modules", "a=/nowhere"], "holds no adapter_config.json"),
        (["--lora-modules", "a=/x", "--lora-modules", "a=/y"], "a name of its own"),
        (["--lora-modules", "a=/x", "--fleet", "127.0.0.1:1", "--replicas", "1"], "a fleet serves no LoRA"),
    ],
)
def test_wrong_flags_are_named(flags: Sequence[str], message: str) -> None:
    done = run("serve", TINY, *flags)
    assert done.returncode == 2
    assert "--lora-modules" in done.stderr
    assert message in done.stderr


def test_a_load_test_draws_adapters(server: Served, tmp_path: Path) -> None:
    sizes = ("--requests", 12, "--input-len", 40, "--output-len", 4, "--json")
    shown = run("bench", server.url, *sizes, "--lora-modules", "a", "--lora-modules", "b")
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert (result["completed"], result["failed"]) == (12, 0)
    wrong = run("bench", server.url, *sizes, "--lora-modules", "nobody")
    assert (wrong.returncode, "--lora-modules nobody: not served here" in wrong.stderr) == (2, True)


def test_the_library_names_what_is_wrong(folder: Path) -> None:
    with LLM(TINY, format=FORMAT, lora_modules=(f"a={folder / 'a'}",), max_loras=1) as llm:
        with pytest.raises(UserError, match=r"max_loras=1 is reached"):
            llm.load_adapter("b", folder / "b")
        llm.load_adapter("a", folder / "b")  # in its place
        with pytest.raises(UserError, match=r"adapter b is not loaded; there are a"):
            llm.generate([PROMPTS[0]], adapter="b")
        llm.unload_adapter("a")
        with pytest.raises(UserError, match="adapter a is not loaded; none is loaded"):
            llm.unload_adapter("a")
        llm.load_adapter("b", folder / "b")
    with pytest.raises(UserError, match="a: /nowhere: holds no adapter_config"):
        LLM(TINY, format=FORMAT, lora_modules=("a=/nowhere",))
    for limit in ({"max_loras": 4}, {"max_lora_rank": 64}):
        with pytest.raises(UserError, match="no adapters are served"):
            LLM(TINY, format=FORMAT, **limit)
    with LLM(TINY, format=FORMAT) as llm, pytest.raises(UserError, match="enable_lora"):
        llm.load_adapter("a", folder / "a")


def test_the_device_takes_longer_with_an_adapter_and_holds_it(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with LLM(TINY, format=FORMAT, clock="virtual", enable_lora=True) as llm:
        llm.load_adapter("a", folder / "a")
        took = {}
        for name in (None, "a"):
            (answer,) = llm.generate([PROMPTS[0]], params, adapter=name)
            assert answer.device is not None
            took[name] = answer.device.time_per_output_token_ms
    assert took["a"] > took[None]
    config = EngineConfig(model=str(TINY), format=FORMAT)
    bare = plan_device(config, registry.load(TINY))
    lora = config.model_copy(update={"enable_lora": True, "max_loras": 4, "max_lora_rank": 8})
    widths = [op.out.width + op.x.width for op in bare.programs[0].ops if isinstance(op, Linear)]
    more = [
        with_them.weights - without.weights
        for with_them, without in zip(
            plan_device(lora, registry.load(TINY)).memory.cores, bare.memory.cores, strict=True
        )
    ]
    assert more[0] == 4 * 8 * 2 * sum(widths), "bf16 numbers of each adapter"
    huge = config.model_copy(update={"enable_lora": True, "max_loras": 256, "max_lora_rank": 512})
    with pytest.raises(UserError, match="does not fit the memory of inf2"):
        plan_device(
            huge.model_copy(update={"instance": "inf2.xlarge"}), registry.architecture("llama-3.1-8b")
        )


def test_the_adapter_that_was_asked_for_the_longest_ago_makes_room(folder: Path) -> None:
    """Requests make room among what requests have loaded: an adapter of the flags stays."""
    with serving("--lora-modules", f"a={folder / 'a'}", "--lora-dir", folder, "--max-loras", 3) as server:

        def loaded() -> set[str]:
            return {card["id"] for card in server.get("/v1/models").json()["data"]} - {"tiny"}

        for name in ("b", "c", "b", "other"):
            assert ask(server, name, PROMPTS[0]).status_code == 200
        assert loaded() == {"a", "b", "other"}
        with ThreadPoolExecutor(8) as threads:
            asked = [(name, n) for n in range(4) for name in ("b", "c", "other", "on-demand")]
            answers = list(threads.map(lambda one: ask(server, one[0], PROMPTS[one[1]]), asked))
        assert {answer.status_code for answer in answers} <= {200, 429}, "no room is told"
        assert len(loaded()) == 3
        full = load(server, "more", folder / "c")
        assert (full.status_code, "--max-loras 3" in full.text) in {(503, True), (200, False)}


def test_a_model_that_slept_has_its_adapters(folder: Path, expected: Mapping[str, list[str]]) -> None:
    flags = ("--lora-modules", f"a={folder / 'a'}", "--admin-port", 0)
    with serving(*flags) as server:
        admin = admin_of(server)
        body = {"lora_name": "b", "lora_path": str(folder / "b")}
        assert httpx.post(admin + LOAD, json=body).status_code == 200
        assert httpx.post(admin + UNLOAD, json={"lora_name": "a"}).status_code == 200
        assert httpx.post(f"{admin}/sleep", timeout=None).status_code == 200
        assert text_of(ask(server, "b", PROMPTS[2])) == expected["b"][2], "it wakes"
        assert ask(server, "a", PROMPTS[2]).status_code == 404


def test_lines_of_a_batch_have_adapters(
    folder: Path, tmp_path: Path, expected: Mapping[str, list[str]]
) -> None:
    asked, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {
            "custom_id": f"{model}-{n}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": model, "prompt": PROMPTS[n], **GREEDY},
        }
        for n in range(3)
        for model in ("tiny", "a", "b")
    ]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    modules = [part for name in ("a", "b") for part in ("--lora-modules", f"{name}={folder / name}")]
    flags = ("--model", TINY, "--served-model-name", "tiny", "--dtype", FORMAT, *modules)
    done = run("batch", "-i", asked, "-o", answers, *flags)
    assert done.returncode == 0, done.stderr
    found = {
        line["custom_id"]: line["response"]["body"]
        for line in map(json.loads, answers.read_text().splitlines())
    }
    texts = {name: body["choices"][0]["text"] for name, body in found.items()}
    assert texts == {f"{model}-{n}": expected[model][n] for n in range(3) for model in ("tiny", "a", "b")}


@pytest.mark.slow
def test_a_thousand_requests_over_32_adapters_are_each_as_alone(tmp_path: Path) -> None:
    """Drawn tokens with logprobs, in batches of 16, over a prefix that all share."""
    config = EngineConfig(model=str(TINY), format=FORMAT, enable_lora=True, max_loras=32, max_num_seqs=16)
    with closing(Driver(assemble(config, lambda _what, _done: None))) as driver:
        reports = [
            driver.load_adapter(LoadAdapter(f"x{n}", str(write(tmp_path / f"x{n}", n, 1 + n % 16))))
            for n in range(32)
        ]
        assert not any(one.error for one in reports)
        refs = [None, *(AdapterRef(one.name, one.digest) for one in reports)]
        draw = random.Random(1)
        asked = [
            Submit(
                f"r{n}",
                [*range(40, 80), *(draw.randrange(320) for _ in range(draw.randrange(1, 40)))],
                draw.randrange(4, 24),
                TokenSampling(seed=n, logprobs=2),
                adapter=draw.choice(refs),
            )
            for n in range(1000)
        ]
        together = answers(driver, asked)
        for submit in asked:
            (alone,) = answers(driver, [submit]).values()
            mixed = together[submit.id]
            assert (mixed.tokens, mixed.logprobs) == (alone.tokens, alone.logprobs), submit.id
