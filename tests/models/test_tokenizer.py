"""Tokenizers of Hugging Face directories, and chat templates."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.text.directory_tokenizer import MAX_TOKENIZER_BYTES, from_directory
from corepipe.models.text.tokenizer import Tokenizer
from tests.parity.families import TINY, VOCAB


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return registry.load(TINY / "smollm2").tokenizer()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_tokens_one_by_one(tokenizer: Tokenizer) -> None:
    euro = tokenizer.encode("\u20ac")
    assert b"".join(map(tokenizer.token_bytes, euro)) == "\u20ac".encode()
    assert "\ufffd" in tokenizer.decode_token(euro[0])
    assert tokenizer.decode_token(2) == "<|im_end|>"
    assert tokenizer.decode([1, *tokenizer.encode("hi"), 2]) == "hi"


@pytest.mark.parametrize("token", [VOCAB, 10**6, -1])
def test_unknown_ids_are_nothing(tokenizer: Tokenizer, token: int) -> None:
    assert tokenizer.token_bytes(token) == b""
    assert tokenizer.decode_token(token) == ""


def test_what_cannot_be_encoded_or_decoded_is_a_user_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="not valid Unicode"):
        tokenizer.encode("\ud800")
    for ids in ([-1], [1 << 40]):
        with pytest.raises(UserError, match="token ids"):
            tokenizer.decode(ids)


def test_bos_is_added_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    """The config's `add_bos_token` is for directories without tokenizer.json, as in transformers."""
    backend = registry.load(TINY / "llama2").tokenizer().backend
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", 1)])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = from_directory(tmp_path)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [1, *plain]
    assert not tokenizer.has_chat_template
    with pytest.raises(UserError, match="no chat template"):
        tokenizer.apply_chat_template([])


def test_a_jinja_file_goes_before_the_config(tmp_path: Path) -> None:
    shutil.copytree(TINY / "llama2", tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ bos_token }}{{ messages | length }}<|eot_id|>")
    tokenizer = from_directory(tmp_path / "m", eos_ids=(7,))
    assert tokenizer.apply_chat_template([{}, {}]) == "<|im_start|>2<|eot_id|>"
    assert tokenizer.eos_ids == {2, 3, 7}


def test_another_template_can_be_put_in(tokenizer: Tokenizer) -> None:
    other = tokenizer.with_chat_template("{{ messages[0].content }}!")
    assert other.apply_chat_template([{"content": "x"}]) == "x!"
    with pytest.raises(UserError, match="the chat template is not valid"):
        tokenizer.with_chat_template("{% if %}")


def test_a_panic_of_the_library_is_a_user_error(tmp_path: Path) -> None:
    """A pattern that backtracks without end, and a post-processor that names a missing token."""
    split = {"behavior": "Isolated", "invert": False}
    hostile = [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, **split}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "gone", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
    ]
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    for part in hostile:
        text = json.dumps({"version": "1.0", "added_tokens": [], "model": model, **part})
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(UserError, match="the tokenizer cannot encode this text") as caught:
            from_directory(tmp_path).encode("a" * 100 + "!")
        assert caught.value.param == "prompt"


def test_a_vocabulary_that_lacks_what_a_text_needs_is_a_user_error(tmp_path: Path) -> None:
    model = {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    with pytest.raises(UserError, match=r"cannot encode this text: .*unknown token"):
        from_directory(tmp_path).encode("b")


def test_a_tokenizer_larger_than_any_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_TOKENIZER_BYTES + 1)
    with pytest.raises(UserError, match="not a tokenizer"):
        from_directory(tmp_path)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize("left", [(), ("tokenizer_config.json",), ("vocab.json",), ("merges.txt",)])
@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2", "qwen3"])
def test_a_directory_without_tokenizer_files_is_refused_whatever_its_family(
    family: str, left: tuple[str, ...], tmp_path: Path
) -> None:
    """transformers makes an empty tokenizer for some families, which would refuse every text."""
    model = shutil.copytree(TINY / family, tmp_path / "model")
    for name in TOKENIZER_FILES:
        (model / name).unlink(missing_ok=True)
    for name in left:
        (model / name).write_text("{}")
    others = r"nor tokenizer\.model, nor vocab\.json with merges\.txt, nor vocab\.txt; copy"
    missing = rf"has no tokenizer\.json, {others}"
    with pytest.raises(UserError, match=missing):
        registry.load(model).tokenizer()


SPECIAL = {"id": 0, "content": "<s>", "special": True}
SPECIAL |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
EMPTY = {"type": "BPE", "vocab": {}, "merges": []}


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"version": "1.0", "added_tokens": [SPECIAL], "model": EMPTY}, "has no vocabulary"),
        ({}, r"tokenizer\.json: cannot be read"),
    ],
)
def test_a_broken_tokenizer_is_refused(described: dict[str, object], why: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=why):
        from_directory(tmp_path)


def test_importing_is_cheap() -> None:
    code = "import sys, corepipe.models.registry, corepipe.models.hub; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"transformers", "torch", "gguf", "huggingface_hub"} & set(loaded)
