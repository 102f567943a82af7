"""Two texts as one, compared with transformers: ids, token types, and truncation."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import BertTokenizerFast, PreTrainedTokenizerFast, RobertaTokenizerFast

from corepipe.models.text.directory_tokenizer import from_directory
from corepipe.models.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*"abcdefghijklmn", "##s", "##ed", *SPECIAL]
Both = tuple[Tokenizer, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder: Path = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    theirs = BertTokenizerFast(str(folder / "vocab.txt"))
    theirs.save_pretrained(folder)
    return from_directory(folder), theirs


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder: Path = tmp_path_factory.mktemp("roberta")
    vocab = {text: at for at, text in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "Ġa"])}
    theirs = RobertaTokenizerFast(vocab=vocab, merges=[])
    theirs.save_pretrained(folder)
    return from_directory(folder), theirs


def texts() -> tuple[str, str]:
    return tuple(" ".join(random.choices(WORDS[:14], k=random.randint(1, 12))) for _ in range(2))


def test_as_transformers_has_them(bert: Both) -> None:
    own, theirs = bert
    random.seed(16)
    for _ in range(500):
        first, second = texts()
        most = random.choice([None, 3, 4, 5, 8, 11, 16])
        cut = {} if most is None else {"truncation": True, "max_length": most}
        wanted = theirs(first, second, **cut)
        ids, at = own.pair(first, second, most=most)
        assert ids == wanted["input_ids"]
        assert [0] * at + [1] * (len(ids) - at) == wanted["token_type_ids"]


def test_of_one_type_of_tokens(roberta: Both) -> None:
    own, theirs = roberta
    ids, at = own.pair("a b", "b a")
    assert ids == theirs("a b", "b a")["input_ids"]
    assert ids[at:] == theirs("b a", add_special_tokens=False)["input_ids"] + [theirs.eos_token_id]


def test_a_second_text_is_cut_first(bert: Both) -> None:
    own, _ = bert
    ids, at = own.pair("a b", "c d e f g", most_second=2)
    assert ids == own.pair("a b", "c d")[0]
    bare = own.encode("a b c d e", add_special_tokens=False)
    assert own.pair("a b", "c d e", add_special_tokens=False) == (bare, at - 2)
