"""Tokenizers built from GGUF metadata, compared with those that transformers builds from the same file."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_config import config_fields
from corepipe.models.text.gguf_splits import SPLITS
from corepipe.models.text.gguf_tokenizer import from_gguf
from tests.models import ggufs
from tests.parity import real
from tests.parity.families import DATA, TINY

PIECES = ("\u2581", "a", "b", "\u2581a", "ab", "\u2581ab", "ba", "c", "bac")
SCORES = (-9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0, -9.0, -0.5)


DIGITS_ALONE = ("smollm", "refact", "starcoder")
CUTS = json.loads((DATA / "cuts" / "deepseek.json").read_text(encoding="utf-8"))
"""Texts, and the number of bytes of each token that llama.cpp makes of them with DeepSeek's vocabularies."""


def byte_level_file(path: Path, pre: str) -> GgufFile:
    writer = ggufs.begun(path)
    ggufs.add_tokenizer(writer, registry.load(TINY / "llama2"), pre)
    ggufs.close(writer)
    return GgufFile(path)


def sentencepiece_file(path: Path) -> GgufFile:
    """Writes unknown, bos, eos, the 256 bytes, and a few pieces with scores instead of merges."""
    writer = ggufs.begun(path)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES])
    writer.add_token_scores([0.0] * 259 + list(SCORES))
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(PIECES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    ggufs.close(writer)
    return GgufFile(path)


def samples() -> list[str]:
    rng = random.Random(5)
    text = real.PERPLEXITY_TEXT.read_text(encoding="utf-8")
    characters = "abc XYZ  \n\n\t123's\u00e9\u4f60\U0001f600.,!?\u200b_-"
    cuts = [text[at : at + rng.randrange(120)] for at in (rng.randrange(len(text)) for _ in range(60))]
    mixed = ["".join(rng.choices(characters, k=rng.randrange(40))) for _ in range(120)]
    return [*real.TOKENIZER_SAMPLES, *cuts, *mixed]


def assert_equal_to_transformers(file: GgufFile) -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    names = mapping.GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    described = {
        name: file.metadata[f"tokenizer.{key}"] for key, name in names if f"tokenizer.{key}" in file.metadata
    }
    theirs, _ = mapping.convert_gguf_tokenizer("llama", described)
    if described.get("pre_tokenizer_type") in DIGITS_ALONE:
        # transformers does not know these names; the splits come from the models' own tokenizer.json.
        digits = pre_tokenizers.Digits(individual_digits=True)
        theirs.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ours = from_gguf(file)
    for text in samples():
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == expected, text
        assert ours.decode(expected, skip_special_tokens=True) == theirs.decode(
            expected, skip_special_tokens=True
        )


@pytest.mark.parametrize("pre", [pre for pre in SPLITS if not pre.startswith("deepseek")])
def test_byte_level_ids_are_those_of_transformers(tmp_path: Path, pre: str) -> None:
    assert_equal_to_transformers(byte_level_file(tmp_path / "m.gguf", pre))


def test_sentencepiece_ids_are_those_of_transformers(tmp_path: Path) -> None:
    assert_equal_to_transformers(sentencepiece_file(tmp_path / "m.gguf"))


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    ours = from_gguf(sentencepiece_file(tmp_path / "m.gguf"))
    first = 259
    assert ours.encode("ab") == [1, first + PIECES.index("\u2581ab")]
    euro = ours.encode("\u20ac", add_special_tokens=False)[1:]
    assert b"".join(map(ours.token_bytes, euro)) == "\u20ac".encode()
    assert ours.token_bytes(first + 3) == b" a"
    assert ours.decode(ours.encode("abac bab")) == "abac bab"
    assert (ours.bos_id, ours.eos_ids) == (1, {2})


def gemma_like_file(path: Path) -> tuple[GgufFile, dict[str, list[int]]]:
    """Writes a sentencepiece model as llama.cpp's converter writes Gemma's; returns it and ids of texts."""
    made = json.loads((DATA / "sentencepiece" / "tiny.json").read_text(encoding="utf-8"))
    pieces = made["pieces"]
    writer = ggufs.begun(path)
    writer.add_tokenizer_model("llama")
    # The converter does not change the spaces of user-defined tokens.
    writer.add_token_list([piece.replace("\u2581", " ") if kind == 4 else piece for piece, _, kind in pieces])
    writer.add_token_scores([-1000.0 if kind in (3, 4) else score for _, score, kind in pieces])
    writer.add_token_types([kind for *_, kind in pieces])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_add_space_prefix(value=False)
    ggufs.close(writer)
    return GgufFile(path), made["ids"]


def test_ids_are_those_of_sentencepiece(tmp_path: Path) -> None:
    """No space in front, bytes, runs of spaces and line ends: from tests/parity/make_sentencepiece.py."""
    file, expected = gemma_like_file(tmp_path / "m.gguf")
    ours = from_gguf(file)
    for text, ids in expected.items():
        assert ours.encode(text, add_special_tokens=False) == ids, text
        assert ours.decode(ids) == text
    assert ours.encode("  a") == [2, *expected["  a"]]


def test_text_joins_to_no_control_token(tmp_path: Path) -> None:
    """The spelling of an unmatched control token is text: no merge leads to one."""
    file, _ = gemma_like_file(tmp_path / "m.gguf")
    for key, value in (("tokens", "<s"), ("scores", -400.0), ("token_type", 1)):
        file.metadata[f"tokenizer.ggml.{key}"].append(value)  # ">" is in the vocabulary
    merges = json.loads(from_gguf(file).backend.to_str())["model"]["merges"]
    joined = {left + right for left, right in merges}
    assert len(joined) > 300
    tokens, kinds = (file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    others = {token for token, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 6)}
    assert "<s" in joined
    assert not joined & others


def test_the_facts_of_a_byte_level_file(tmp_path: Path) -> None:
    ggufs.convert(TINY / "smollm2", tmp_path / "model.gguf")
    converted, original = registry.load(tmp_path), registry.load(TINY / "smollm2")
    ours, theirs = converted.tokenizer(), original.tokenizer()
    assert ours.encode("<|im_start|>a b") == theirs.encode("<|im_start|>a b")
    assert (ours.bos_id, ours.eos_ids, ours.vocab_size) == (1, {2, 3}, theirs.vocab_size)
    assert ours.apply_chat_template([{"content": "hi"}]) == "hi<|im_end|>"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("model", "bert", "tokenizer.ggml.model is 'bert' .known: gpt2, llama"),
        ("pre", "martian", "tokenizer.ggml.pre is 'martian' .known: default"),
        ("tokens", None, "tokenizer.ggml.tokens is missing"),
        ("tokens", [1, 2], "tokenizer.ggml.tokens is missing or not a list of strings"),
        ("merges", ["q\u00e9 zz"], "tokenizer.ggml.merges do not fit"),
        ("bos_token_id", 10**6, "bos_token_id is 1000000, outside the vocabulary"),
    ],
)
def test_broken_vocabularies_are_refused(tmp_path: Path, key: str, value: object, why: str) -> None:
    file = byte_level_file(tmp_path / "m.gguf", "qwen2")
    file.metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(UserError, match=why) as caught:
        from_gguf(file)
    assert str(file.path) in caught.value.message


def test_scores_must_match_the_tokens(tmp_path: Path) -> None:
    file = sentencepiece_file(tmp_path / "m.gguf")
    file.metadata["tokenizer.ggml.scores"] = [0.0]
    with pytest.raises(UserError, match="one entry a token"):
        from_gguf(file)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    ggufs.close(ggufs.begun(tmp_path / "bare.gguf"))
    with pytest.raises(UserError, match=r"bare\.gguf: tokenizer\.ggml\.tokens is missing"):
        registry.load(tmp_path / "bare.gguf").tokenizer()


def ends(lengths: list[int]) -> set[int]:
    return {0, *itertools.accumulate(lengths)}


@pytest.mark.parametrize("pre", ["deepseek-llm", "deepseek-coder"])
def test_deepseek_s_cuts_are_ends_of_llama_cpp_s_tokens(tmp_path: Path, pre: str) -> None:
    """No token of any vocabulary crosses a split; these are the models' own tokens."""
    cutter = from_gguf(byte_level_file(tmp_path / "m.gguf", pre)).backend.pre_tokenizer
    for text, lengths in zip(CUTS["texts"], CUTS[pre], strict=True):
        pieces = [text[start:end] for _, (start, end) in cutter.pre_tokenize_str(text)]
        assert "".join(pieces) == text
        assert ends([len(piece.encode()) for piece in pieces]) <= ends(lengths), text


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("deepseek-v3", "12345 6", ["123", "45", " ", "6"]),
        ("deepseek-v3", "a\u4e2d\u3042\u30a2b's", ["a", "\u4e2d\u3042\u30a2", "b", "'s"]),
        ("deepseek-v3", "it's ##b, c", ["it", "'s", " ##", "b", ",", " c"]),
        ("deepseek-llm", "ab \u4e2d12\n", ["ab", " ", "\u4e2d", "1", "2", "\n"]),
        ("deepseek-llm", "A\u00e9 \uff1f?\u3002 b", ["A", "\u00e9", " \uff1f?", "\u3002", " b"]),
        ("deepseek-coder", "x = f(1)", ["x", " =", " f", "(", "1", ")"]),
    ],
)
def test_what_deepseek_cuts(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    cutter = from_gguf(byte_level_file(tmp_path / "m.gguf", pre)).backend.pre_tokenizer
    assert [text[start:end] for _, (start, end) in cutter.pre_tokenize_str(text)] == pieces


def test_added_tokens_are_texts_as_they_stand(tmp_path: Path) -> None:
    """DeepSeek's bos has characters outside the byte alphabet, MPT's runs of spaces are spaces."""
    writer = ggufs.begun(tmp_path / "m.gguf")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bos = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-v3")
    writer.add_token_list([*alphabet, bos, "   ", "ab"])
    writer.add_token_types([1] * len(alphabet) + [3, 4, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(alphabet))
    writer.add_add_bos_token(value=True)
    ggufs.close(writer)
    ours = from_gguf(GgufFile(tmp_path / "m.gguf"))
    letter = alphabet.index("a")
    assert ours.encode("a   a") == [len(alphabet), letter, len(alphabet) + 1, letter]
    assert ours.encode(f"a{bos}", add_special_tokens=False) == [letter, len(alphabet)]
    assert ours.decode(ours.encode("a   a"), skip_special_tokens=True) == "a   a"
    assert ours.backend.get_vocab_size() == len(alphabet) + 3


def with_ids(path: Path, ids: dict[str, int], **flags: bool) -> GgufFile:
    """Writes a file of bytes with the given ids of special tokens, signed where they are negative."""
    writer = ggufs.begun(path)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_token_list([*alphabet, "<s>", "$A", "ab"])
    writer.add_token_types([1] * len(alphabet) + [3, 3, 1])
    writer.add_token_merges(["a b"])
    for name, number in ids.items():
        add = writer.add_int32 if number < 0 else writer.add_uint32
        add(f"tokenizer.ggml.{name}_token_id", number)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.add_{name}_token", value)
    ggufs.close(writer)
    return GgufFile(path)


@pytest.mark.parametrize("unset", [-1, 2**32 - 1])
@pytest.mark.parametrize(
    "name", ["padding", "seperator", "unknown", "bos", "eos", "eot", "eom", "cls", "mask"]
)
def test_an_id_of_all_ones_is_none(name: str, unset: int, tmp_path: Path) -> None:
    file = with_ids(tmp_path / "m.gguf", {"eos": 256, name: unset}, bos=False)
    ours, fields = from_gguf(file), config_fields(file)
    assert ours.bos_id is None
    assert ours.eos_ids == (set() if name == "eos" else {256})
    assert fields.ids("bos_token_id") == ()
    assert fields.ids("eos_token_id") == (() if name == "eos" else (256,))
    assert ours.encode("a") == [sorted(pre_tokenizers.ByteLevel.alphabet()).index("a")]


@pytest.mark.parametrize("name", ["bos", "eos"])
@pytest.mark.parametrize("number", [None, -1, 2**32 - 1])
def test_one_that_is_to_be_put_around_texts_must_be_there(
    name: str, number: int | None, tmp_path: Path
) -> None:
    file = with_ids(tmp_path / "m.gguf", {} if number is None else {name: number}, **{name: True})
    why = rf"{name}_token_id names no token, but texts are to have one \(tokenizer\.ggml\.add_{name}_token"
    with pytest.raises(UserError, match=why):
        from_gguf(file)


def test_a_sentencepiece_model_has_a_bos_unless_the_file_has_none(tmp_path: Path) -> None:
    file = sentencepiece_file(tmp_path / "m.gguf")
    assert from_gguf(file).encode("a")[0] == 1
    file.metadata["tokenizer.ggml.bos_token_id"] = 2**32 - 1
    with pytest.raises(UserError, match="bos_token_id names no token"):
        from_gguf(file)
    file.metadata["tokenizer.ggml.add_bos_token"] = False
    plain = from_gguf(file).encode("a")
    del file.metadata["tokenizer.ggml.add_bos_token"], file.metadata["tokenizer.ggml.bos_token_id"]
    assert from_gguf(file).encode("a") == plain


@pytest.mark.parametrize("name", ["bos", "eos", "unknown", "padding"])
@pytest.mark.parametrize("number", [259, -2])
def test_other_ids_outside_the_vocabulary_are_refused(name: str, number: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{name}_token_id is {number}, outside the vocabulary"):
        from_gguf(with_ids(tmp_path / "m.gguf", {name: number}))


def test_a_token_that_cannot_be_put_around_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\$A.* cannot be put around texts"):
        from_gguf(with_ids(tmp_path / "m.gguf", {"bos": 257}, bos=True))
