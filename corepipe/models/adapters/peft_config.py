"""PEFT's adapter_config.json: the scale of each layer, and all that is not computed, refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from corepipe.errors import UserError, shown
from corepipe.models.fields import Fields, read_json

CONFIG = "adapter_config.json"
MAX_RANK = 512
MAX_ALPHA = 1e6
MAX_PATTERNS = 1 << 16
"""Entries of rank_pattern and alpha_pattern, and names in target_modules."""

TRAINING = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out", "inference_mode"),
        *("layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config"),
        *("megatron_core", "peft_version", "qalora_group_size", "revision", "target_modules", "task_type"),
        *("eva_config", "corda_config", "ensure_weight_tying", "lora_ga_config"),
    }
)
"""Keys that say how the tensors came about or where they belong, which the tensors' names say as well."""

READ = frozenset(
    {
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"),
        *("init_lora_weights", "target_modules"),
    }
)

KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the model's own weights as they are."""

NOT_COMPUTED: dict[str, str] = {
    "use_dora": "DoRA is not computed",
    "lora_bias": "biases of adapters are not computed",
    "modules_to_save": "whole modules beside the adapter are not computed",
    "layer_replication": "replicated layers are not computed",
    "alora_invocation_tokens": "adapters that begin at some token (aLoRA) are not computed",
    "trainable_token_indices": "trained rows of embeddings are not computed",
    "target_parameters": "adapters of experts and other parameters are not computed",
}

_NAME = re.compile(r"\^?[A-Za-z0-9_.\-]+\Z")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The part of a PEFT configuration that says how layers are computed.

    targets: ends of the names of the modules that have an adapter (None: the tensors alone say which).
    ranks, alphas: of the modules whose names end so, the first that fits.
    """

    path: Path
    rank: int
    alpha: float
    by_root: bool
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]
    targets: tuple[str, ...] | None

    def rank_of(self, module: str) -> int:
        """Returns the rank of a module's adapter."""
        return int(_first(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Returns the factor of a module's adapter: alpha / rank, or alpha / sqrt(rank) with rsLoRA."""
        alpha, rank = _first(self.alphas, module, self.alpha), self.rank_of(module)
        return alpha / (sqrt(rank) if self.by_root else rank)

    def targets_module(self, module: str) -> bool:
        """Tells whether a module may have an adapter."""
        return self.targets is None or any(_ends(module, target) for target in self.targets)


def read_config(folder: Path, most_rank: int = MAX_RANK) -> PeftConfig:
    """Reads the configuration in an adapter's directory.  Raises UserError, naming the file and the key, for
    what is not LoRA, not computed, or of a rank above `most_rank`."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{shown(folder, 200)}: holds no {CONFIG}: give the directory of a PEFT adapter")
    fields = Fields(path, read_json(path))
    _refuse(fields)
    ranks = _pattern(fields, "rank_pattern", 1, most_rank, whole=True)
    return PeftConfig(
        path=path,
        rank=fields.integer("r", most_rank),
        alpha=fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA),
        by_root=fields.flag("use_rslora"),
        ranks=ranks,
        alphas=_pattern(fields, "alpha_pattern", -MAX_ALPHA, MAX_ALPHA),
        targets=_targets(fields),
    )


def _refuse(fields: Fields) -> None:
    """Raises UserError for the first key that asks for something that is not computed."""
    if (kind := fields.text("peft_type").upper()) != "LORA":
        raise fields.error("peft_type", f"{shown(repr(kind), 40)} is not supported, only LORA")
    fields.require("bias", ("none",), "none")
    for key, reason in NOT_COMPUTED.items():
        if fields.values.get(key):
            raise fields.error(key, f"is not supported: {reason}")
    start = fields.values.get("init_lora_weights", True)
    if start is not None and start not in KEEPS_BASE:
        raise fields.error(
            "init_lora_weights",
            f"{shown(repr(start), 40)} is not supported: such an adapter changes the model's own weights",
        )
    for key, value in fields.values.items():
        if key not in TRAINING | READ | NOT_COMPUTED.keys() and value:
            raise fields.error(key, "is not known, and may change what is computed")


def _targets(fields: Fields) -> tuple[str, ...] | None:
    """Returns the ends of names in target_modules; None for an expression or none, as the tensors say as
    much, and an expression of a stranger may take forever."""
    value = fields.values.get("target_modules")
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, list) or len(value) > MAX_PATTERNS or not all(isinstance(v, str) for v in value):
        raise fields.error("target_modules", "must be a text or a list of names")
    return tuple(value)


def _pattern(fields: Fields, key: str, least: float, most: float, *, whole: bool = False) -> dict[str, float]:
    """Returns the numbers of rank_pattern or alpha_pattern by the end of a module's name."""
    value = fields.values.get(key) or {}
    if not isinstance(value, dict) or len(value) > MAX_PATTERNS:
        raise fields.error(key, "must be an object of names and numbers")
    own = Fields(fields.path, value, prefix=f"{key}.")
    for name in value:
        if not _NAME.match(name):
            raise own.error(name, "is an expression; only the end of a module's name is supported")
    if whole:
        return {name: own.integer(name, int(most), least=int(least)) for name in value}
    return {name: own.number(name, least, most) for name in value}


def _first(numbers: Mapping[str, float], module: str, default: float) -> float:
    return next((number for end, number in numbers.items() if _ends(module, end)), default)


def _ends(module: str, end: str) -> bool:
    """Tells whether a name is `end` or ends with it after a dot; ^ stands for the beginning of the name."""
    return module == end.removeprefix("^") or (not end.startswith("^") and module.endswith(f".{end}"))
