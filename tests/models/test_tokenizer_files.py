"""Files of a tokenizer's tokens, read in transformers' order, with the same ids for a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from corepipe.engine.batch.masks import _tokenizer as masking
from corepipe.errors import UserError
from corepipe.models.text.directory_tokenizer import from_directory

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
ADDED, IN_VOCABULARY = ("<s>", "</s>"), "<x>"
"""Tokens that tokenizer.json has added, and one that is only a piece of the vocabulary."""
TEXT = "hi<s> a</s>b<x>c<new>d<|e|> e <m> f"

CONFIG, MAP, MORE = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
BOTH = {"bos_token": "<s>", "eos_token": "</s>"}
SWAPPED = {"bos_token": "</s>", "eos_token": "<s>"}


def as_object(text: str, **flags: bool) -> dict[str, Any]:
    return {
        "content": text,
        **dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False),
        **flags,
    }


def backend(*, framed: bool = False) -> Backend:
    vocabulary = {piece: number for number, piece in enumerate((*ALPHABET, *ADDED, IN_VOCABULARY))}
    made = Backend(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ADDED])
    if framed:
        made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", len(ALPHABET))])
    return made


DIRECTORIES: dict[str, dict[str, Any]] = {
    "no other file": {},
    "a map of texts": {MAP: BOTH},
    "a map of objects": {MAP: {name: as_object(text) for name, text in BOTH.items()}},
    "a map beside a config that names none": {CONFIG: FAST, MAP: BOTH},
    "the map goes before the config": {CONFIG: FAST | SWAPPED, MAP: BOTH},
    "a map completes the config": {CONFIG: FAST | {"pad_token": "<x>"}, MAP: {"bos_token": "<s>"}},
    "a config with null": {CONFIG: FAST | {"bos_token": None}, MAP: BOTH},
    "tokens by id: the map is not read": {
        CONFIG: FAST | SWAPPED | {"added_tokens_decoder": {"256": as_object("<s>", special=True)}},
        MAP: BOTH | {"pad_token": "<x>"},
        MORE: {"<new>": 259},
    },
    "tokens by id that tokenizer.json lacks": {
        CONFIG: FAST
        | {
            "added_tokens_decoder": {
                "260": as_object("<m>", lstrip=True),
                "259": as_object("<new>", special=True),
            }
        }
    },
    "tokens by id with other flags": {
        CONFIG: FAST | {"added_tokens_decoder": {"256": as_object("<s>", rstrip=True, special=True)}}
    },
    "no tokens by id": {CONFIG: FAST | SWAPPED | {"added_tokens_decoder": {}}, MAP: BOTH},
    "added tokens": {CONFIG: FAST, MORE: {"<|e|>": 260, "<new>": 259}},
    "added tokens beyond the vocabulary": {CONFIG: FAST, MORE: {"<new>": 300, "<|e|>": 290, "<s>": 256}},
    "added tokens of which one is special": {
        MORE: {"<new>": 259, "<|e|>": 260},
        MAP: BOTH | {"eos_token": "<|e|>"},
    },
    "a special token that is a piece alone": {CONFIG: FAST | {"unk_token": "<x>"}},
    "special tokens that are nowhere": {
        CONFIG: FAST | {"cls_token": "<new>", "sep_token": "<m>", "eos_token": "</s>"}
    },
    "a special token with flags": {MAP: {"mask_token": as_object("<m>", lstrip=True)}},
    "special tokens without names": {CONFIG: FAST | {"additional_special_tokens": ["<new>", "<|e|>"]}},
    "special tokens without names in the map": {MAP: {"extra_special_tokens": ["<new>", as_object("<|e|>")]}},
    "a special token of the model's own": {CONFIG: FAST | {"image_token": "<new>"}},
    "names of the model's own": {CONFIG: FAST | {"extra_special_tokens": {"image_token": "<m>"}}},
    "to be put before a text, which tokenizer.json does not": {CONFIG: FAST | BOTH | {"add_bos_token": True}},
    "not to be put before a text, which tokenizer.json does": {
        CONFIG: FAST | BOTH | {"add_bos_token": False, "add_eos_token": True},
        "framed": True,
    },
    "special tokens in texts are text": {CONFIG: FAST | BOTH | {"split_special_tokens": True}},
}


def made(name: str, folder: Path) -> Path:
    files = dict(DIRECTORIES[name])
    backend(framed=files.pop("framed", False)).save(str(folder / "tokenizer.json"))
    for file, content in {"config.json": {"model_type": "llama"}, **files}.items():
        (folder / file).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("name", DIRECTORIES)
def test_ids_and_names_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(made(name, tmp_path))
    ours = from_directory(tmp_path)
    for text in (TEXT, "", "<s>", " <m><m> <new>"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert (
            ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        )
    assert ours._special == theirs.special_tokens_map
    assert ours.vocab_size == len(theirs)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.eos_ids == ({theirs.eos_token_id} - {None})
    shown = ours.with_chat_template("{{ bos_token }}|{{ image_token }}|{{ messages[0].content }}")
    assert shown.apply_chat_template([{"content": "x"}]) == "|".join(
        [theirs.bos_token or "", theirs.special_tokens_map.get("image_token", ""), "x"]
    )


@pytest.mark.parametrize(
    "files",
    [
        {},
        {MAP: {"bos_token": "<s>", "eos_token": as_object("</s>")}},
        {CONFIG: BOTH | {"add_bos_token": True}},
        {CONFIG: SWAPPED, MAP: {"unk_token": "<x>"}, MORE: {"<new>": 259}},
    ],
)
def test_a_vocabulary_and_its_merges_have_the_same_files_beside_them(
    files: dict[str, Any], tmp_path: Path
) -> None:
    described = json.loads(backend().to_str())["model"]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    for file, content in {
        "vocab.json": described["vocab"],
        "config.json": {"model_type": "gpt2"},
        **files,
    }.items():
        (tmp_path / file).write_text(json.dumps(content))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), from_directory(tmp_path)
    assert ours.encode(TEXT) == theirs(TEXT)["input_ids"]
    assert (ours._special, ours.bos_id) == (theirs.special_tokens_map, theirs.bos_token_id)


def test_a_list_of_pieces_is_enough(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hi", "there", "##re"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), from_directory(tmp_path)
    assert ours.encode("Hi there [MASK]") == theirs("Hi there [MASK]")["input_ids"] == [2, 5, 6, 4, 3]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({MAP: {"bos_token": 5}}, r"special_tokens_map\.json: bos_token must be a token, not 5"),
        ({MAP: {"eos_token": {"text": "a"}}}, r"special_tokens_map\.json: eos_token must be a token"),
        ({MAP: []}, r"special_tokens_map\.json: must hold a JSON object"),
        ({MORE: {"<new>": "259"}}, r"added_tokens\.json: <new> must have a token id, not '?259"),
        ({MORE: {"<new>": -1}}, r"added_tokens\.json: <new> must have a token id"),
        (
            {CONFIG: {"added_tokens_decoder": []}},
            r"tokenizer_config\.json: added_tokens_decoder must be an object",
        ),
        ({CONFIG: {"added_tokens_decoder": {"x": "<s>"}}}, r"tokenizer_config\.json: x must have a token id"),
        ({CONFIG: {"added_tokens_decoder": {"1": 1}}}, r"added_tokens_decoder\.1 must be a token, not 1"),
        (
            {CONFIG: {"extra_special_tokens": [1]}},
            r"tokenizer_config\.json: extra_special_tokens must be a token",
        ),
    ],
)
def test_what_is_no_token_is_refused_by_name(files: dict[str, Any], why: str, tmp_path: Path) -> None:
    backend().save(str(tmp_path / "tokenizer.json"))
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=why):
        from_directory(tmp_path)


def test_an_answer_is_held_to_a_grammar_where_the_model_has_no_rows_for_some_tokens(tmp_path: Path) -> None:
    ours = from_directory(made("special tokens that are nowhere", tmp_path))
    assert masking(ours, 259).vocab_size == 259
    assert masking(ours, 300).vocab_size == 300


# Chat templates

TEMPLATES = {
    "a text": {CONFIG: {"chat_template": "config"}},
    "a file before it": {CONFIG: {"chat_template": "config"}, "chat_template.jinja": "file"},
    "a list": {
        CONFIG: {"chat_template": [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]}
    },
    "a list with tools": {
        CONFIG: {
            "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
        }
    },
    "tools alone": {CONFIG: {"chat_template": [{"name": "tool_use", "template": "t"}]}},
    "files with tools": {
        CONFIG: {"chat_template": "config"},
        "chat_template.jinja": "file",
        "additional_chat_templates/tool_use.jinja": "tools",
        "additional_chat_templates/rag.jinja": "rag",
    },
    "a file of another name alone": {
        CONFIG: {"chat_template": "config"},
        "additional_chat_templates/tool_use.jinja": "tools",
    },
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_is_the_one_of_transformers(name: str, tmp_path: Path) -> None:
    backend().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "additional_chat_templates").mkdir()
    for file, content in TEMPLATES[name].items():
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content | FAST))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), from_directory(tmp_path)
    for tools, speaker in ((None, ours), ([{"name": "f"}], ours.with_tools)):
        try:
            expected = theirs.get_chat_template(tools=tools)
        except ValueError:  # there is no default template
            expected = None
        assert speaker.chat_template == expected
