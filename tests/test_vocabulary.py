"""Models with more rows than their tokenizers have texts, and with fewer: the token ids that are accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from corepipe.engine.batch.masks import GrammarCompiler, MaskBuffer
from corepipe.models import registry
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.structured.constraints import StructuredOutputsParams, constraint_of
from corepipe.structured.grammars import grammar_of
from corepipe.structured.spelling import Spelling
from tests.engine.encoder_support import EMBED, bert, computing
from tests.servers import TINY, Served, served
from tests.serving.http_support import FakeEngine, running

ROWS, FEW, GAPS = 320, 310, (267, 271, 272)
"""Rows of the model; ids from 310 on have no text, nor have three others, for which there is no token."""
BARE = [*GAPS, FEW, ROWS - 1]


def directory(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Writes the small model with another tokenizer."""
    shutil.copytree(TINY, folder)
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    return folder


def without(told: dict[str, Any], ids: Sequence[int]) -> None:
    model = told["model"]
    gone = {text for text, token in model["vocab"].items() if token in ids}
    parts = [one.split(" ") if isinstance(one, str) else one for one in model["merges"]]
    model["merges"] = [one for one in parts if gone.isdisjoint((*one, "".join(one)))]
    model["vocab"] = {text: token for text, token in model["vocab"].items() if text not in gone}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models") / "bare"
    directory(folder, lambda told: without(told, [*GAPS, *range(FEW, ROWS)]))
    with served(folder, "--served-model-name", "tiny") as running:
        yield running


def ask(server: Served, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(server.url + path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("token", BARE)
def test_what_the_model_draws_comes_back_in_every_field(server: Served, token: int) -> None:
    """The token has no text anywhere, and is an error nowhere."""
    more = {"max_tokens": 2, "temperature": 0, "return_token_ids": True, "logprobs": 1, "ignore_eos": True}
    drawn = ask(server, "/v1/completions", prompt="a", logit_bias={str(token): 100}, **more)["choices"][0]
    assert (drawn["token_ids"], drawn["text"], drawn["logprobs"]["tokens"]) == ([token] * 2, "", ["", ""])
    only = ask(server, "/v1/completions", prompt="a", allowed_token_ids=[token], **more)["choices"][0]
    assert only["token_ids"] == [token] * 2
    sent = drawn["prompt_token_ids"] + drawn["token_ids"]
    again = ask(server, "/v1/completions", prompt=sent, echo=True, prompt_logprobs=1, **more)["choices"][0]
    assert (again["prompt_token_ids"], again["text"][:1]) == (sent, "a")
    stopped = ask(server, "/v1/completions", prompt="a", logit_bias={str(token): 100}, stop_token_ids=[token])
    assert (stopped["choices"][0]["finish_reason"], stopped["choices"][0]["stop_reason"]) == ("stop", token)
    assert ask(server, "/detokenize", tokens=[token, *sent, token]) == {"prompt": "a"}
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 1}
    said = ask(server, "/v1/chat/completions", logit_bias={str(token): 100}, max_tokens=2, **chat)["choices"][
        0
    ]
    assert (said["message"]["content"], said["logprobs"]["content"][0]["bytes"]) == ("", [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [ROWS]}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(ROWS): 1}}),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [ROWS]}),
        ("/v1/completions", {"prompt": "a", "allowed_token_ids": [ROWS]}),
        ("/detokenize", {"tokens": [ROWS]}),
    ],
)
def test_what_the_model_has_no_row_for_is_refused_by_the_field(
    server: Served, path: str, body: dict[str, Any]
) -> None:
    answer = httpx.post(server.url + path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in body


def test_answers_are_constrained_without_what_has_no_text(server: Served) -> None:
    wanted = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2}
    said = ask(server, "/v1/completions", prompt="a", max_tokens=60, seed=1, guided_json=wanted)["choices"][0]
    assert json.loads(said["text"])


def test_ids_of_encoders_are_taken_up_to_their_rows() -> None:
    rows = bert().vocab_size + 5
    with running(FakeEngine(computing(EMBED)), text=bert(), task=replace(EMBED, vocab_size=rows)) as url:
        ask = [{"model": "tiny", "input": [token]} for token in (rows - 1, rows)]
        taken, refused = (httpx.post(f"{url}/v1/embeddings", json=one) for one in ask)
    assert (taken.status_code, refused.status_code) == (200, 400)
    assert refused.json()["error"]["param"] == "input"


def test_tasks_tell_the_rows() -> None:
    loaded = registry.load(TINY)
    assert [loaded.task(name).vocab_size for name in ("generate", "embed")] == [ROWS, ROWS]


def with_gaps() -> Tokenizer:
    """Returns a tokenizer of all bytes, in the upper half of ids, with every second id unused."""
    vocab = {text: 2 * at + 1 for at, text in enumerate(f"<0x{byte:02X}>" for byte in range(256))}
    backend = Backend(models.BPE(vocab, [], byte_fallback=True, unk_token="<0x00>"))
    backend.decoder = decoders.ByteFallback()
    return Tokenizer(backend, {}, None)


def test_a_vocabulary_with_gaps_ends_after_its_largest_id() -> None:
    found = with_gaps()
    assert found.vocab_size == 512
    assert found.backend.get_vocab_size() == 256
    assert (found.token_bytes(511), found.token_bytes(510), found.decode_token(9999)) == (b"\xff", b"", "")
    assert Spelling.of(found).missing == b"", "bytes whose ids are above the count are there, too"


def test_answers_are_constrained_by_what_has_a_row() -> None:
    """Added tokens without a row in the model cannot be drawn."""
    known = registry.load(TINY).tokenizer()
    backend = Backend.from_str(known.backend.to_str())
    backend.add_special_tokens(["<|extra|>", "<|more|>"])
    wider = Tokenizer(backend, {"eos_token": "<|more|>"}, None, eos_ids=known.eos_ids)
    assert (wider.vocab_size, ROWS + 1 in wider.eos_ids) == (ROWS + 2, True)
    grammar = grammar_of(constraint_of(StructuredOutputsParams(choice=["ab"])))
    masks = [MaskBuffer(ROWS).rows(1)[0] for _ in range(2)]
    for mask, one in zip(masks, (known, wider), strict=True):
        GrammarCompiler(lambda one=one: one, ROWS).constraint(grammar).fill(mask)
    assert masks[0].tolist() == masks[1].tolist()
