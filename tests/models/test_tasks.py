"""Tasks of checkpoints, from their files; sentence-transformers' directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.models.sentence_transformers import read_sentence_model
from corepipe.models.tasks import ClassScores, Dense, ScoreActivation, Task, TaskInfo, TextVectors, UnitLength
from corepipe.neuron.formats import Function
from corepipe.neuron.ops import PoolingMode

SMALL: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
LLAMA = {**SMALL, "model_type": "llama"}
SENTENCE = "sentence_transformers.models."
MODULE, POOLING = "modules.json", "1_Pooling/config.json"
BERT, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": f"{SENTENCE}Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{SENTENCE}Pooling"},
]
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{SENTENCE}Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{SENTENCE}Dense"}
IDENTITY = "torch.nn.modules.linear.Identity"
FUNCTION = {"sentence_transformers": {"activation_fn": IDENTITY}}
TANH = "torch.nn.modules.activation.Tanh"


def write(folder: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def task_of(folder: Path, config: dict[str, Any], asked: str = "auto", **files: object) -> TaskInfo:
    write(folder, {"config.json": config} | {name.replace("__", "/"): x for name, x in files.items()})
    return architecture(str(folder)).task(asked)


def named(architecture: str, **changes: object) -> dict[str, Any]:
    return {**SMALL, "architectures": [architecture], **changes}


def classes(**changes: object) -> dict[str, Any]:
    return named("BertForSequenceClassification", **changes)


@pytest.mark.parametrize(
    ("config", "task"),
    [
        (SMALL, Task.EMBED),
        (named("BertModel"), Task.EMBED),
        (named("BertForMaskedLM"), Task.EMBED),
        (classes(), Task.CLASSIFY),
        (classes(id2label={"0": "LABEL_0"}), Task.SCORE),
        (classes(num_labels=1), Task.SCORE),
        (named("BertForTokenClassification"), Task.CLASSIFY),
        (LLAMA, Task.GENERATE),
        ({**LLAMA, "architectures": ["LlamaForCausalLM"]}, Task.GENERATE),
    ],
)
def test_a_checkpoint_says_what_it_is_for(config: dict[str, Any], task: Task, tmp_path: Path) -> None:
    assert task_of(tmp_path, config).task is task


def test_an_encoder_that_says_nothing_is_pooled_by_the_mean(tmp_path: Path) -> None:
    told = task_of(tmp_path, SMALL)
    assert told == TaskInfo(
        Task.EMBED, 64, 48, types=True, head=TextVectors(PoolingMode.MEAN), vocab_size=100
    )


def test_a_decoder_embeds_with_its_last_token(tmp_path: Path) -> None:
    told = task_of(tmp_path, LLAMA, "embed")
    assert told == TaskInfo(Task.EMBED, 64, 48, head=TextVectors(PoolingMode.LAST), vocab_size=100)


def test_classes_have_names(tmp_path: Path) -> None:
    labels = {"1": "good", "0": "bad", "2": "fair"}
    told = task_of(tmp_path, classes(id2label=labels))
    assert (told.labels, told.dimensions, told.head) == (("bad", "good", "fair"), 3, ClassScores(3))
    assert (told.activation, told.pairs, told.per_token) == (ScoreActivation.SOFTMAX, True, False)
    told = task_of(tmp_path, named("BertForTokenClassification"))
    assert (told.labels, told.head) == (("LABEL_0", "LABEL_1"), ClassScores(2, per_token=True))
    assert (told.pairs, told.per_token) == (False, True)


@pytest.mark.parametrize(
    ("changes", "files", "activation"),
    [
        ({"num_labels": 1}, {}, ScoreActivation.SIGMOID),
        ({"problem_type": "multi_label_classification"}, {}, ScoreActivation.SIGMOID),
        ({"problem_type": "single_label_classification"}, {}, ScoreActivation.SOFTMAX),
        ({"problem_type": "regression"}, {}, ScoreActivation.IDENTITY),
        ({"sbert_ce_default_activation_function": IDENTITY}, {}, ScoreActivation.IDENTITY),
        ({"num_labels": 1, **FUNCTION}, {}, ScoreActivation.IDENTITY),
        (FUNCTION, {"activation_fn": "torch.nn.modules.activation.Sigmoid"}, ScoreActivation.SIGMOID),
    ],
)
def test_scores_go_through_what_the_files_name(
    changes: dict[str, Any], files: dict[str, Any], activation: ScoreActivation, tmp_path: Path
) -> None:
    write(tmp_path, {"config_sentence_transformers.json": files})
    assert task_of(tmp_path, classes(**changes)).activation is activation


@pytest.mark.parametrize(
    ("config", "asked", "why"),
    [
        (SMALL, "paint", "task: paint is not known"),
        (SMALL, "generate", "task: .* cannot generate: it is not a decoder"),
        (SMALL, "score", "task: .* cannot score: it has no head of classes"),
        (named("BertForMaskedLM"), "classify", r"it has no head of classes \(BertForMaskedLM\)"),
        (classes(), "score", "one number a text, this gives 2 classes"),
        (
            {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
            "auto",
            "cannot classify: LlamaForSequenceClassification is not supported",
        ),
        (classes(id2label={"1": "one"}), "auto", "id2label.0 is missing"),
        (classes(sbert_ce_default_activation_function="os.system"), "auto", "'os.system' is not supported"),
        (classes(problem_type="x"), "auto", "problem_type x is not supported"),
        ({**SMALL, "matryoshka_dimensions": [49]}, "auto", "matryoshka_dimensions must be a list"),
        ({**SMALL, "is_decoder": True}, "auto", "is_decoder is not supported"),
        ({**SMALL, "position_embedding_type": "relative_key"}, "auto", "position_embedding_type 'relat"),
    ],
)
def test_what_a_model_cannot_do_is_refused(
    config: dict[str, Any], asked: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why):
        task_of(tmp_path, config, asked)


def test_a_directory_of_sentence_transformers(tmp_path: Path) -> None:
    dense = {"in_features": 48, "out_features": 20, "bias": False, "activation_function": TANH}
    write(
        tmp_path,
        {
            "modules.json": [*MODULES, DENSE, {**NORMALIZE, "idx": 3, "path": "3_Normalize"}],
            "1_Pooling/config.json": {"word_embedding_dimension": 48, "pooling_mode_cls_token": True},
            "2_Dense/config.json": dense,
            "sentence_bert_config.json": {"max_seq_length": 40, "do_lower_case": False},
            "config_sentence_transformers.json": {
                "prompts": {"query": "query: ", "passage": ""},
                "default_prompt_name": "query",
            },
        },
    )
    told = task_of(tmp_path, {**SMALL, "matryoshka_dimensions": [10, 20]})
    steps = (Dense("2_Dense", 20, bias=False, function=Function.TANH), UnitLength())
    assert told == TaskInfo(
        task=Task.EMBED,
        max_tokens=40,
        dimensions=20,
        prompts={"query": "query: ", "passage": ""},
        default_prompt="query",
        normalized=True,
        matryoshka=(10, 20),
        types=True,
        head=TextVectors(PoolingMode.FIRST, steps),
        vocab_size=100,
    )


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({}, PoolingMode.MEAN),
        ({"pooling_mode": "weightedmean"}, PoolingMode.WEIGHTED_MEAN),
        ({"pooling_mode": ["lasttoken"]}, PoolingMode.LAST),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, PoolingMode.MEAN_SQRT_LEN),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, PoolingMode.MAX),
    ],
)
def test_poolings_of_old_and_new_releases(
    config: dict[str, object], pooling: PoolingMode, tmp_path: Path
) -> None:
    write(tmp_path, {"modules.json": MODULES, "1_Pooling/config.json": config})
    assert read_sentence_model(tmp_path).head == TextVectors(pooling)


def dense(**changes: object) -> dict[str, object]:
    return {MODULE: [*MODULES, DENSE], "2_Dense/config.json": {"out_features": 4, **changes}}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({MODULE: {}}, r"modules.json: must hold a list of 1 to 64 modules"),
        ({MODULE: [*MODULES, *[NORMALIZE] * 63]}, r"modules.json: must hold a list of 1 to 64 modules"),
        ({MODULE: [{"type": "custom_st.Transformer"}]}, r"\[0\].type .*code that comes with the model"),
        ({MODULE: [MODULES[1]]}, r"\[0\].type: a model of Pooling is not supported"),
        ({MODULE: [{**MODULES[0], "path": "0_Transformer"}]}, r"\[0\].path: a model that is not in"),
        ({MODULE: [MODULES[0], NORMALIZE]}, r"\[1\].type: Normalize right after the model"),
        ({MODULE: [MODULES[0], {**MODULES[1], "path": "../x"}]}, r"\[1\].path \(../x\) is not a dir"),
        ({MODULE: [*MODULES, {**DENSE, "type": f"{SENTENCE}LayerNorm"}]}, r"\[2\].type: LayerNorm is not"),
        ({POOLING: {"pooling_mode": ["mean", "max"]}}, r"1_Pooling/.*concatenated poolings \(mean, max\)"),
        (
            {POOLING: {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}},
            "pooling_mode_mean_tokens concatenated poolings",
        ),
        ({POOLING: {"pooling_mode": "median"}}, "pooling_mode median is not known"),
        (
            {POOLING: {"include_prompt": False}, SETTINGS: {"prompts": {"query": "q: "}}},
            "1_Pooling/config.json: include_prompt must be true",
        ),
        ({BERT: {"query_length": 3}}, "query_length is not supported"),
        ({BERT: {"max_seq_length": 0}}, "max_seq_length must be an integer"),
        ({BERT: {"config_args": {"a": 1}}}, "config_args is not supported"),
        ({BERT: {"tokenizer_args": {"a": 1}}}, "tokenizer_args.a is not supported"),
        ({BERT: {"modality_config": {"image": {}}}}, "modality_config.image is not supported"),
        ({SETTINGS: {"prompts": {"a": 1}}}, "prompts has no text"),
        ({SETTINGS: {"default_prompt_name": "a"}}, r"\(a\) is none of the prompts"),
        ({SETTINGS: {"truncate_dim": 5}}, "truncate_dim is not supported"),
        (dense(activation_function="os.system"), "activation_function os.system is not supported"),
        (dense(use_residual=True), "use_residual is not supported"),
    ],
)
def test_what_is_not_done_is_refused_by_file_and_key(
    files: dict[str, object], why: str, tmp_path: Path
) -> None:
    write(tmp_path, {"modules.json": MODULES, **files})
    with pytest.raises(UserError, match=why):
        read_sentence_model(tmp_path)


@pytest.mark.parametrize(
    ("stated", "tokenizer", "most"),
    [(None, None, 64), (None, 30, 30), (20, 30, 20), (None, int(1e30), 64), (500, 30, 64)],
)
def test_where_texts_are_cut(stated: int | None, tokenizer: int | None, most: int, tmp_path: Path) -> None:
    if stated is not None:
        write(tmp_path, {"sentence_bert_config.json": {"max_seq_length": stated}})
    if tokenizer is not None:
        write(tmp_path, {"tokenizer_config.json": {"model_max_length": tokenizer}})
    assert task_of(tmp_path, SMALL).max_tokens == most
