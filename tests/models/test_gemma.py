"""Gemma 3 270M itself, where it is in the cache: configuration, names, shapes, tokenizer, tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corepipe import LLM, SamplingParams
from corepipe.models import hub, registry
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_config import config_fields
from corepipe.models.packaged import PACKAGED, is_there
from corepipe.models.text.gguf_tokenizer import from_gguf
from tests.parity.families import DATA

NAME = "gemma-3-270m"


@pytest.fixture(scope="module")
def file() -> GgufFile:
    folder = hub.cache_dir() / "models" / NAME
    if not is_there(PACKAGED[NAME], folder):
        pytest.skip(f"{NAME} is not in the cache: `corepipe pull {NAME}` fetches it, under its terms")
    return GgufFile(folder / PACKAGED[NAME].file)


def test_it_has_the_shape_that_was_published(file: GgufFile) -> None:
    """GGUF omits the settings of scores and windowed layers in Gemma's own config.json."""
    ours = registry.Architecture("x", config_fields(file)).config
    published = registry.architecture(NAME).config
    for name in ("model_type", "vocab_size", "hidden_size", "num_layers", "heads", "ffn_size", "windows"):
        assert getattr(ours, name) == getattr(published, name), name
    assert (ours.tied, ours.eos_ids, ours.bos_id) == (True, (1,), 2)


def test_ids_are_those_of_sentencepiece(file: GgufFile) -> None:
    """The ids are those of a model rebuilt from the same pieces by tests/parity/make_sentencepiece.py."""
    tokenizer = from_gguf(file, (1,))
    expected = json.loads(Path(DATA / "sentencepiece" / "gemma.json").read_text(encoding="utf-8"))
    for text, ids in expected.items():
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("  a") == [2, *expected["  a"]]
    assert tokenizer.encode("<start_of_turn>") == [2, 105]


def test_greedy_tokens_are_those_of_transformers(file: GgufFile) -> None:
    """The tokens are those of its Gemma3ForCausalLM in fp32, with the weights that its own reader takes."""
    expected = json.loads((DATA / "gemma-3-270m.json").read_text(encoding="utf-8"))
    one_core = {"pipeline": 1, "tensor": 1, "data": 1}
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(str(file.path), format="fp32", max_model_len=128, **one_core) as llm:
        answers = llm.generate([case["prompt"] for case in expected], params)
    assert [list(answer.token_ids) for answer in answers] == [case["tokens"] for case in expected]
