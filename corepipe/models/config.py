"""What a model is, read from a Hugging Face config.json or from GGUF metadata, and checked once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from corepipe.errors import UserError, shown
from corepipe.models import rope_fields
from corepipe.models.checkpoints.files import read_bytes
from corepipe.models.rope import RopeConfig
from corepipe.models.rope_fields import either, read_rope, rope_section
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.graph import Function

MAX_HIDDEN = 1 << 17
MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 10
MAX_FFN = 1 << 20
MAX_VOCAB = 1 << 22
MAX_POSITIONS = rope_fields.MAX_POSITIONS
MAX_JSON_BYTES = 64 * 1024 * 1024

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "silu": Function.SILU,
        "swish": Function.SILU,
        "gelu": Function.GELU,
        "gelu_python": Function.GELU,
        "gelu_new": Function.GELU_TANH,
        "gelu_fast": Function.GELU_TANH,
        "gelu_pytorch_tanh": Function.GELU_TANH,
        "relu": Function.RELU,
    }
)
"""transformers' names of activation functions."""

SILU = ("silu", "swish")


class Norm(StrEnum):
    """Kinds of norm over the residual stream."""

    RMS = "rms"
    LAYER = "layer"
    LAYER_NO_BIAS = "layer without bias"
    LAYER_PLAIN = "layer without gain and bias"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What transformers have in common, with the options of Llama's relatives; the families add their own.

    `windows` has one entry a layer: how many latest positions it attends to, None for all.  `layer_ropes`
    has one entry a layer where they differ: its rotary embedding, None for none; otherwise all have `rope`.
    `qkv_bias`, `out_bias` and `mlp_bias` say which linears carry a bias; `head_norms` are norms
    over each query and key head; `qkv_clip`: what queries, keys and values are held within.
    `function` is the feed-forward's; `rotary_dim` how many elements of a head the rotary embedding turns
    (None: all).  `eos_ids` are all ids that end an answer.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: HeadLayout
    ffn_size: int
    eps: float
    rope: RopeConfig
    max_positions: int
    windows: tuple[int | None, ...]
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    qkv_clip: float | None = None
    function: Function = Function.SILU
    rotary_dim: int | None = None
    norm: Norm = Norm.RMS
    layer_ropes: tuple[RopeConfig | None, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def rope_of(self, layer: int) -> RopeConfig | None:
        """The rotary embedding of a layer, None for one that knows no positions."""
        return self.layer_ropes[layer] if self.layer_ropes else self.rope

    def values(self) -> dict[str, Any]:
        """All fields by name, to make the config of a family with more of them from."""
        return {f.name: getattr(self, f.name) for f in dataclass_fields(self)}


class Fields:
    """Typed access to the keys of a config; every complaint names the file and the key.

    `shown` renames a key in complaints (GGUF spells `hidden_size` as `llama.embedding_length`);
    `prefix` is where a nested object stands, `assumed` the keys that have a family's default.  A key whose
    value is null counts as absent.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, object],
        shown: Mapping[str, str] | None = None,
        prefix: str = "",
        assumed: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        self.values = values
        self._assumed = assumed
        self._shown = shown or {}
        self._prefix = prefix

    def error(self, key: str, why: str) -> UserError:
        name = self._prefix + key
        return UserError(f"{self.path}: {shown(self._shown.get(name, name))} {why}")

    def replace(self, key: str, value: object) -> Fields:
        """The same fields with `key` set."""
        assumed = self._assumed - {key}
        return Fields(self.path, {**self.values, key: value}, self._shown, self._prefix, assumed)

    def without(self, *keys: str) -> Fields:
        """The same fields, some of them absent."""
        kept = {key: value for key, value in self.values.items() if key not in keys}
        return Fields(self.path, kept, self._shown, self._prefix, self._assumed)

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """The fields under Llama's names: `names` has ours for theirs; complaints use the config's own."""
        ours = {ours: self.values[theirs] for ours, theirs in names.items() if theirs in self.values}
        shown = {ours: self._shown.get(theirs, theirs) for ours, theirs in names.items()}
        values, shown = {**self.values, **ours}, {**self._shown, **shown}
        return Fields(self.path, values, shown, self._prefix, self._assumed - ours.keys())

    def defaulting(self, key: str, value: object) -> Fields:
        """The same fields with `key` set where it is absent."""
        if self.has(key):
            return self
        assumed = self._assumed | {key}
        return Fields(self.path, {**self.values, key: value}, self._shown, self._prefix, assumed)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def says(self, key: str) -> bool:
        """Tells whether the key is there, and is no default."""
        return self.has(key) and key not in self._assumed

    def integer(self, key: str, most: int, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"must be an integer from {least} to {most}, not {shown(value, 60)}")
        return value

    def number(self, key: str, least: float, most: float, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.error(key, f"must be a number from {least:g} to {most:g}, not {shown(value, 60)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {shown(value, 60)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise self.error(
                key, "is missing" if value is None else f"must be a string, not {shown(value, 60)}"
            )
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids written as one integer, a list of them, or null."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < MAX_VOCAB:
                raise self.error(key, f"must be a token id or a list of them, not {shown(value, 60)}")
        return tuple(items)

    def items(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(key, f"must be a list, not {shown(value, 60)}")
        return value

    def numbers(self, key: str, count: int, least: float, most: float) -> tuple[float, ...]:
        values = self.items(key)
        sound = all(
            isinstance(v, int | float) and not isinstance(v, bool) and least <= v <= most for v in values
        )
        if len(values) != count or not sound:
            raise self.error(key, f"must be a list of {count} numbers from {least:g} to {most:g}")
        return tuple(map(float, values))

    def section(self, key: str) -> Fields | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, not {shown(value, 60)}")
        return Fields(self.path, value, self._shown, f"{self._prefix}{key}.")

    def refuse(self, *keys: str) -> None:
        """Raises UserError for the first of these keys that is on: variants that are not described here."""
        for key in keys:
            if self.values.get(key):
                raise self.error(key, "is not supported")

    def require(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(key, f"{value!r} is not supported (known: {', '.join(allowed)})")
        return value


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; raises UserError for anything else."""
    try:
        value = json.loads(read_bytes(path, MAX_JSON_BYTES, "a configuration file"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return value


def qkv_clip(fields: Fields) -> float | None:
    """From `clip_qkv`."""
    return fields.number("clip_qkv", 1e-6, 1e6) if fields.has("clip_qkv") else None


def common(
    fields: Fields, functions: Collection[str] = SILU, rotary_share: float | None = None
) -> ModelConfig:
    """The keys that mean the same in every family; the families replace what they read otherwise.

    `functions` are the names that `hidden_act` may have, the first where it is absent.  `rotary_share`: of a
    head, where `partial_rotary_factor` does not say it; None: all of a head is rotated, whatever happens.
    """
    function = fields.require("hidden_act", tuple(functions), next(iter(functions)))
    hidden = fields.integer("hidden_size", MAX_HIDDEN)
    layers = fields.integer("num_hidden_layers", MAX_LAYERS)
    heads = _heads(fields, hidden)
    rotary = None if rotary_share is None else _rotary_dim(fields, heads, rotary_share)
    rope = read_rope(fields, rotary or heads.head_dim, partial=rotary is not None)
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        ffn_size=fields.integer("intermediate_size", MAX_FFN),
        eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        max_positions=_max_positions(fields, rope),
        windows=(None,) * layers,
        tied=fields.flag("tie_word_embeddings"),
        function=FUNCTIONS[function],
        rotary_dim=rotary,
        bos_id=next(iter(fields.ids("bos_token_id")), None),
        eos_ids=fields.ids("eos_token_id"),
    )


def without_rope(fields: Fields) -> Fields:
    """For families that are timed only: how their frequencies are scaled changes no time, and is not read."""
    return fields.without("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor")


def _rotary_dim(fields: Fields, heads: HeadLayout, default: float) -> int:
    """How many elements of a head are rotated, from their share of the head."""
    source = either(fields, rope_section(fields), "partial_rotary_factor")
    share = source.number("partial_rotary_factor", 0.0, 1.0, default)
    return max(2, int(share * heads.head_dim) // 2 * 2)


def _heads(fields: Fields, hidden: int) -> HeadLayout:
    heads = fields.integer("num_attention_heads", MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", MAX_HEADS, default=heads)
    if heads % kv_heads:
        raise fields.error(
            "num_attention_heads", f"({heads}) is not a multiple of {kv_heads} key/value heads"
        )
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error(
            "hidden_size", f"({hidden}) is not a multiple of {heads} heads, and head_dim is not given"
        )
    head_dim = fields.integer("head_dim", MAX_HEAD_DIM, default=max(1, hidden // heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"({head_dim}) must be even for rotary embedding")
    return HeadLayout(heads, kv_heads, head_dim)


def _max_positions(fields: Fields, rope: RopeConfig) -> int:
    """The context the model claims; a yarn factor stretches the length it was trained with."""
    claimed = fields.integer("max_position_embeddings", MAX_POSITIONS)
    if rope.kind != "yarn":
        return claimed
    return min(MAX_POSITIONS, max(claimed, int(rope.factor * rope.original_max_positions)))


def sliding_windows(
    fields: Fields, window: int | None, first_layer: int, layers: int, name: str = "sliding_attention"
) -> tuple[int | None, ...]:
    """One window a layer: of those that `layer_types` calls by this name, else from `first_layer` on."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return tuple(window if layer >= first_layer else None for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error("layer_types", f"must be a list of {layers} names")
    for kind in kinds:
        if kind not in ("full_attention", name):
            raise fields.error("layer_types", f"holds {kind!r:.60} (known: full_attention, {name})")
    return tuple(window if kind == name else None for kind in kinds)
