"""The public models: their shapes against published counts and transformers' defaults, and their names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.models import published, registry
from corepipe.models.hub import DEFAULT_MODEL
from corepipe.models.packaged import PACKAGED
from corepipe.models.registry import computed_families
from corepipe.neuron.formats import FORMATS
from tests.models.published_counts import COUNTS
from tests.models_page import COUNTED, LISTS, PAGE, ROOT, page, with_counts

NAMES = published.names()

WRITTEN = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "meta-llama/Llama-2-13b-chat-hf": "llama-2-13b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout-17b-16e",
    "llama4-scout": "llama-4-scout",
    "llama2_70b": "llama-2-70b",
    "codellama/CodeLlama-13b-Python-hf": "codellama-13b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "bert-base-uncased": "bert-base",
    "google-bert/bert-base-cased": "bert-base-cased",
    "distilbert-base-uncased": "distilbert-base",
    "distilbert-base-uncased-finetuned-sst-2-english": "distilbert-base",
    "albert-base-v2": "albert-base",
    "google/electra-base-discriminator": "electra-base",
    "google/vit-base-patch16-224-in21k": "vit-base-patch16-224",
    "sentence-transformers/all-MiniLM-L6-v2": "all-minilm-l6-v2",
    "openai-community/gpt2-xl": "gpt2-xl",
    "GPT-2 XL": "gpt2-xl",
    "EleutherAI/gpt-j-6B": "gpt-j-6b",
    "EleutherAI/pythia-6.9b-deduped": "pythia-6.9b",
    "facebook/opt-1.3b": "opt-1.3b",
    "opt-13b": "opt-13b",
    "bigscience/bloom-7b1": "bloom-7b1",
    "databricks/dbrx-instruct": "dbrx",
    "tiiuae/falcon-7b-instruct": "falcon-7b",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "microsoft/phi-1_5": "phi-1-5",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m",
    "google-t5/t5-large": "t5-large",
}


@pytest.mark.parametrize(("name", "millions"), COUNTS.items())
def test_parameters_are_as_many_as_published(name: str, millions: float) -> None:
    assert registry.architecture(name).parameters == pytest.approx(millions * 1e6, rel=0.01)


def test_every_shape_has_a_published_count() -> None:
    """Names with another entry's shape have its count."""
    counted = {str(published.config(name)) for name in COUNTS}
    small_changes = {"max_position_embeddings", "rope_theta", "sliding_window", "rope_scaling", "vocab_size"}
    shapes = [
        {key: value for key, value in published.config(name).items() if key not in small_changes}
        for name in NAMES
        if str(published.config(name)) not in counted
    ]
    known = [
        {key: value for key, value in published.config(name).items() if key not in small_changes}
        for name in COUNTS
    ]
    assert [shape for shape in shapes if shape not in known and "head" not in shape] == []


def test_there_are_enough() -> None:
    assert len(COUNTS) > 120
    assert list(NAMES) == sorted(set(NAMES))


@pytest.mark.parametrize(
    ("name", "config_class", "options"),
    [
        ("albert-xxlarge", "AlbertConfig", {}),
        ("bert-base", "BertConfig", {}),
        ("bloom-560m", "BloomConfig", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}),
        ("command-r-35b", "CohereConfig", {}),
        ("distilbert-base", "DistilBertConfig", {}),
        ("electra-small", "ElectraConfig", {}),
        ("falcon-7b", "FalconConfig", {}),
        ("gemma-7b", "GemmaConfig", {}),
        ("gpt-neo-1.3b", "GPTNeoConfig", {}),
        ("gpt-neox-20b", "GPTNeoXConfig", {}),
        ("gpt2", "GPT2Config", {}),
        ("gpt-j-6b", "GPTJConfig", {}),
        ("llama-7b", "LlamaConfig", {}),
        ("mistral-7b", "MistralConfig", {}),
        ("mixtral-8x7b", "MixtralConfig", {}),
        ("modernbert-base", "ModernBertConfig", {}),
        ("mpnet-base", "MPNetConfig", {"max_position_embeddings": 514}),
        ("mpt-7b", "MptConfig", {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}),
        ("olmo-7b", "OlmoConfig", {}),
        ("opt-125m", "OPTConfig", {}),
        ("phi-1", "PhiConfig", {}),
        ("phi-3-mini", "Phi3Config", {}),
        ("starcoder2-3b", "Starcoder2Config", {}),
        ("t5-small", "T5Config", {}),
        ("vit-base-patch16-224", "ViTConfig", {}),
        ("deepseek-v3", "DeepseekV3Config", {}),
        ("gpt-oss-120b", "GptOssConfig", {}),
        ("smollm3-3b", "SmolLM3Config", {}),
        ("xlm-roberta-base", "XLMRobertaConfig", {"vocab_size": 250002, "max_position_embeddings": 514,
                                                  "type_vocab_size": 1, "head": "masked-lm"}),
    ],
)  # fmt: skip
def test_shapes_are_transformers_defaults(
    tmp_path: Path, name: str, config_class: str, options: dict[str, object]
) -> None:
    """The configs are those of the models that transformers' defaults are named after."""
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(getattr(transformers, config_class)(**options).to_json_string(use_diff=False))
    theirs, ours = (registry.architecture(source) for source in (str(file), name))
    assert theirs.parameters == ours.parameters
    ops = [[(type(op), op.out.width) for op in a.graph(FORMATS["bf16"]).ops] for a in (theirs, ours)]
    assert ops[0] == ops[1]


@pytest.mark.parametrize(("written", "name"), WRITTEN.items())
def test_names_as_people_write_them(written: str, name: str) -> None:
    assert published.resolve(written) == name
    assert registry.architecture(written).name == name


def test_no_two_names_differ_in_separators_only() -> None:
    assert len({name.replace("-", "") for name in NAMES}) == len(NAMES)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    organisation=st.sampled_from(["", "org/", "Some-Org/"]),
    ending=st.sampled_from(["", "-instruct", "-Instruct", "-hf", "-chat-hf", "_gguf"]),
    upper=st.booleans(),
)
def test_spelling_does_not_matter(name: str, organisation: str, ending: str, upper: bool) -> None:
    written = name.upper() if upper else name.replace("-", "_")
    assert published.resolve(f"{organisation}{written}{ending}") == name


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_name_or_a_user_error(text: str) -> None:
    try:
        name = published.resolve(text)
    except UserError as error:
        name = error.param or ""
    assert name in {*NAMES, "model"}


def test_repositories_on_the_hub() -> None:
    assert published.hub_id("llama-3.1-8b") == "meta-llama/Llama-3.1-8B"
    assert published.hub_id("tinyllama") == published.hub_id("tinyllama-1.1b")
    assert published.hub_id("bert-base") is None
    known = {name: published.hub_id(name) for name in NAMES}
    shapes = [(name, published.resolve(found)) for name, found in known.items() if found]
    assert [pair for pair in shapes if published.config(pair[0]) != published.config(pair[1])] == []
    assert sum(found is not None for found in known.values()) > 230
    assert not any("hub" in published.config(name) for name in NAMES)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(UserError, match=r"'llama-3\.1-7b' is not a file.*nearest names are .*llama-3\.1-8b"):
        registry.architecture("llama-3.1-7b")


def test_the_page_of_models_is_what_is_there() -> None:
    """`python -m tests.models_page` leaves docs/models.md as it is, and finds whatever it lists."""
    text = PAGE.read_text()
    assert page(text) == text
    assert all(re.search(rf"{before}\s*`[^`]+`", text) for before in LISTS)
    assert page(text.replace("| computed |", "| timed |").replace("`cls`, ", "")) == text
    assert set(re.findall(r"`([^`]+)`", text.split("## Names\n", 1)[1])) == set(NAMES)
    kinds = Counter(re.findall(r"^\| `[\w-]+` \| (computed|timed) \|$", text, re.MULTILINE))
    assert f"are served, {kinds['computed']} model types; {kinds['timed']} others\nare timed" in text


@pytest.mark.parametrize("name", COUNTED)
def test_documents_count_alike(name: str) -> None:
    """`python -m tests.models_page` writes the numbers; each document has some."""
    text = (ROOT / name).read_text()
    assert with_counts(text) == text
    assert with_counts(re.sub(r"\d+", "0", text)) != re.sub(r"\d+", "0", text)


def test_what_is_counted() -> None:
    said = "1 model types, 2 public models, (3 MB), 4 MB on disk, 5 MB of memory, 6 models"
    named, size = len(NAMES), round(PACKAGED[DEFAULT_MODEL].size / 1e6)
    computed = len(computed_families())
    counted = f"{computed} model types, {named} public models, ({size} MB), {size} MB on disk"
    assert with_counts(said) == f"{counted}, 5 MB of memory, 6 models"
