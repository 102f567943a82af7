"""A directory of sentence-transformers: the modules after the model, the truncation length, and prompts.

Options of a module that are not computed here are refused by file and key: a vector that is nearly right
cannot be told from one that is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.files import read_bytes
from corepipe.models.fields import MAX_HIDDEN, MAX_JSON_BYTES, MAX_POSITIONS, Fields, read_json
from corepipe.models.tasks import Dense, ScoreActivation, TextVectors, UnitLength
from corepipe.neuron.formats import Function
from corepipe.neuron.ops import PoolingMode

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTHS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
)
"""Files with the options of a Transformer module; the first that is present counts."""
TRANSFORMER_TASKS = ("feature-extraction", "sequence-classification")
WITHOUT_EFFECT = frozenset({"padding_side", "use_fast"})
"""Options of tokenizers that change no token of a text."""
MAX_MODULES = 64
MAX_PROMPTS = 256
MAX_PROMPT = 1 << 16

MODES: Mapping[str, PoolingMode] = MappingProxyType(
    {
        "cls": PoolingMode.FIRST,
        "max": PoolingMode.MAX,
        "mean": PoolingMode.MEAN,
        "mean_sqrt_len_tokens": PoolingMode.MEAN_SQRT_LEN,
        "weightedmean": PoolingMode.WEIGHTED_MEAN,
        "lasttoken": PoolingMode.LAST,
    }
)
FLAGS: Mapping[str, PoolingMode] = MappingProxyType(
    {
        "pooling_mode_cls_token": PoolingMode.FIRST,
        "pooling_mode_max_tokens": PoolingMode.MAX,
        "pooling_mode_mean_tokens": PoolingMode.MEAN,
        "pooling_mode_mean_sqrt_len_tokens": PoolingMode.MEAN_SQRT_LEN,
        "pooling_mode_weightedmean_tokens": PoolingMode.WEIGHTED_MEAN,
        "pooling_mode_lasttoken": PoolingMode.LAST,
    }
)
"""The pooling modes as the library spelled them before its release 6."""

ACTIVATIONS: Mapping[str, Function | None] = MappingProxyType(
    {
        "Identity": None,
        "Tanh": Function.TANH,
        "ReLU": Function.RELU,
        "GELU": Function.GELU,
        "SiLU": Function.SILU,
        "Sigmoid": Function.SIGMOID,
    }
)
"""The functions of a Dense module, by torch.nn's names."""

SCORES: Mapping[str, ScoreActivation] = MappingProxyType(
    {
        "torch.nn.modules.activation.Sigmoid": ScoreActivation.SIGMOID,
        "torch.nn.modules.activation.Softmax": ScoreActivation.SOFTMAX,
        "torch.nn.modules.linear.Identity": ScoreActivation.IDENTITY,
    }
)
"""The functions of a cross-encoder; other classes would be code that is run because a file names it."""


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """The settings of a directory beside the model's own config.

    head: the Ops after the hidden states (None: not stated). folders: those of modules with weights, by their
    names in the graph. max_tokens: the length at which texts are truncated (None: not stated). lowercase:
    texts are lowered before they are encoded (do_lower_case). activation: the function of a cross-encoder's
    scores (None: not stated).
    """

    head: TextVectors | None = None
    folders: Mapping[str, Path] = field(default_factory=dict)
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    lowercase: bool = False
    activation: ScoreActivation | None = None


def read_sentence_model(folder: Path) -> SentenceModel:
    """Reads a directory's settings. Raises UserError, which names file and key, for what is not computed."""
    options = _options(folder)
    told = _optional_fields(folder / PROMPTS)
    told.refuse("truncate_dim")
    prompts = _prompts(told)
    default = told.text("default_prompt_name", "") or None
    if default is not None and default not in prompts:
        raise told.error("default_prompt_name", f"({shown(default)}) is none of the prompts")
    listed = _listed(folder / MODULES) if (folder / MODULES).is_file() else []
    head, folders = _head(folder, listed, any(prompts.values()))
    return SentenceModel(
        head=head,
        folders=folders,
        max_tokens=options.integer("max_seq_length", MAX_POSITIONS)
        if options.has("max_seq_length")
        else None,
        prompts=prompts,
        default_prompt=default,
        lowercase=options.flag("do_lower_case"),
        activation=read_activation(told, "activation_fn"),
    )


def module_folders(folder: Path) -> list[Path]:
    """Lists the existing directories of a model's modules. Raises UserError for a broken list of them."""
    listed = _listed(folder / MODULES) if (folder / MODULES).is_file() else []
    places = [folder / module.place for module in listed if module.place]
    return [place for place in places if place.is_dir()]


def read_activation(fields: Fields, key: str) -> ScoreActivation | None:
    """Returns the function of a class's name, None where there is none; raises UserError for others."""
    if not fields.has(key):
        return None
    return SCORES[fields.require(key, tuple(SCORES), "")]


def _optional_fields(file: Path) -> Fields:
    return Fields(file, read_json(file) if file.is_file() else {})


def _options(folder: Path) -> Fields:
    """Reads the options of the Transformer module."""
    file = next((folder / name for name in LENGTHS if (folder / name).is_file()), folder / LENGTHS[0])
    options = _optional_fields(file)
    options.refuse("query_length", "document_length", "query_expansion", "processing_kwargs")
    options.refuse("config_args", "config_kwargs")
    for key in ("tokenizer_args", "processor_kwargs"):
        changed = options.section(key)
        for name in changed.values if changed is not None else ():
            if name not in WITHOUT_EFFECT:
                raise options.error(f"{key}.{name}", "is not supported")
    options.require("transformer_task", TRANSFORMER_TASKS, TRANSFORMER_TASKS[0])
    _check_modalities(options)
    return options


def _check_modalities(options: Fields) -> None:
    """Raises UserError unless the model reads plain texts in its forward pass, not messages of a chat."""
    modalities = options.section("modality_config")
    for name in modalities.values if modalities is not None else ():
        way = modalities.section(name) if modalities is not None else None
        if name != "text" or way is None:
            raise options.error(f"modality_config.{shown(name)}", "is not supported (known: text)")
        way.require("method", ("forward",), "forward")
        way.require("method_output_name", ("last_hidden_state", "logits"), "last_hidden_state")


def _prompts(told: Fields) -> Mapping[str, str]:
    value = told.values.get("prompts") or {}
    if not isinstance(value, dict) or len(value) > MAX_PROMPTS:
        raise told.error("prompts", f"must be an object of up to {MAX_PROMPTS} texts")
    for name, text in value.items():
        if text is not None and (not isinstance(text, str) or len(text) > MAX_PROMPT):
            raise told.error("prompts", f"has no text of up to {MAX_PROMPT} characters for {shown(name)}")
    return {name: text for name, text in value.items() if text is not None}


@dataclass(frozen=True, slots=True)
class _Module:
    """An entry of modules.json: the last part of its type's name, and its place in the directory."""

    kind: str
    place: str


def _listed(file: Path) -> list[_Module]:
    try:
        value = json.loads(read_bytes(file, MAX_JSON_BYTES, "a list of modules"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is not valid JSON: {error}") from error
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MODULES:
        raise UserError(f"{file}: must hold a list of 1 to {MAX_MODULES} modules")
    modules = []
    for number, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise UserError(f"{file}: [{number}] must be an object")
        fields = Fields(file, entry, prefix=f"[{number}].")
        modules.append(_Module(_kind(fields), _place(fields)))
    return modules


def _kind(fields: Fields) -> str:
    kind = fields.text("type")
    if not kind.startswith("sentence_transformers."):
        raise fields.error("type", f"({shown(kind)}) is code that comes with the model, which is never run")
    return kind.rpartition(".")[2]


def _place(fields: Fields) -> str:
    """Returns a subdirectory of the model, or an empty string for none."""
    place = fields.text("path", "")
    if len(PurePosixPath(place).parts) > 1 or place.startswith(("/", ".")) or "\\" in place or "\0" in place:
        raise fields.error("path", f"({shown(place)}) is not a directory in the model's")
    return place


def _head(
    folder: Path, modules: list[_Module], prompted: bool
) -> tuple[TextVectors | None, Mapping[str, Path]]:
    """Returns the steps after the model itself, and the folders of their weights."""
    if not modules:
        return None, {}
    file = folder / MODULES
    kinds = [module.kind for module in modules]
    if kinds[0] != "Transformer":
        raise UserError(
            f"{file}: [0].type: a model of {shown(kinds[0])} is not supported (known: Transformer)"
        )
    if modules[0].place:
        raise UserError(f"{file}: [0].path: a model that is not in the directory itself is not supported")
    if len(modules) == 1:
        return None, {}
    if kinds[1] != "Pooling":
        raise UserError(f"{file}: [1].type: {shown(kinds[1])} right after the model is not supported")
    pooling = _pooling(_config(folder, modules[1]), prompted)
    steps: list[Dense | UnitLength] = []
    for number, module in enumerate(modules[2:], 2):
        step = _step(folder, module)
        if step is None:
            raise UserError(
                f"{file}: [{number}].type: {shown(module.kind)} is not supported here "
                "(known: Dense, Normalize)"
            )
        steps.append(step)
    folders = {step.name: folder / step.name for step in steps if isinstance(step, Dense)}
    return TextVectors(pooling, tuple(steps)), folders


def _config(folder: Path, module: _Module) -> Fields:
    return _optional_fields(folder / module.place / "config.json" if module.place else folder / "-")


def _pooling(fields: Fields, prompted: bool) -> PoolingMode:
    """Returns the pooling mode; several modes, whose results the library concatenates, are refused."""
    if prompted and not fields.flag("include_prompt", default=True):
        raise fields.error("include_prompt", "must be true: pooling without the prompt is not supported")
    if fields.has("pooling_mode"):
        value = fields.values["pooling_mode"]
        names = [str(name) for name in (value if isinstance(value, list) else [value])]
        if unknown := [name for name in names if name not in MODES]:
            raise fields.error(
                "pooling_mode", f"{shown(unknown[0])} is not known (known: {', '.join(MODES)})"
            )
        found = [MODES[name] for name in names]
        key = "pooling_mode"
    else:
        on = [name for name in FLAGS if fields.flag(name)]
        found = [FLAGS[name] for name in on]
        key = on[-1] if on else ""
    if len(found) > 1:
        raise fields.error(key, f"concatenated poolings ({', '.join(found)}) are not supported")
    return found[0] if found else PoolingMode.MEAN


def _step(folder: Path, module: _Module) -> Dense | UnitLength | None:
    """Returns the step of a module after the pooling; None for a kind that is not computed."""
    if module.kind not in ("Dense", "Normalize"):
        return None
    fields = _config(folder, module)
    for key in ("module_input_name", "module_output_name"):
        fields.require(key, ("sentence_embedding",), "sentence_embedding")
    if module.kind == "Normalize":
        return UnitLength()
    fields.refuse("use_residual")
    return Dense(
        name=module.place,
        width=fields.integer("out_features", MAX_HIDDEN),
        bias=fields.flag("bias", default=True),
        function=_function(fields),
    )


def _function(fields: Fields) -> Function | None:
    """Returns the function of a class of torch.nn.modules; other classes are code that is not run."""
    name = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    known = name.rpartition(".")[2]
    if not name.startswith("torch.nn.modules.") or known not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise fields.error(
            "activation_function", f"{shown(name)} is not supported (known, of torch.nn.modules: {names})"
        )
    return ACTIVATIONS[known]
