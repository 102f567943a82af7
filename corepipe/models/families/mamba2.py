"""Mamba-2: layers that keep a state of constant size for a sequence, and no attention (Dao & Gu 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

from corepipe.models.config import FUNCTIONS, SILU, ModelConfig
from corepipe.models.families.layers import GraphBuilder, vector
from corepipe.models.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB, Fields
from corepipe.models.rope import RopeConfig
from corepipe.models.weight_map import TensorRows, WeightMap, in_turn
from corepipe.neuron.axes import HeadLayout, fixed, hidden
from corepipe.neuron.ops import CausalConvolution, GatedActivation, RMSNorm, SelectiveScan
from corepipe.neuron.values import Value, WeightRole, WeightSpec

LONGEST = 1 << 20
"""Positions of a model without positions: a bound, which no model sets."""

MAX_STATES, MAX_TAPS = 1 << 12, 64

INFINITY = ({"__float__": "Infinity"}, "Infinity")
"""Spellings of infinity in JSON (transformers 5 and others)."""

EMBEDDING = "backbone.embeddings.weight"


@dataclass(frozen=True, slots=True)
class Mamba2Config(ModelConfig):
    """`heads`: those of the scan, `kv_heads` the groups that share b and c. `states` of each element of a
    head; `taps` of the convolution, with a bias or without (`conv_bias`); `limits` of a step. `mlp_bias`:
    of both linears."""

    states: int = 0
    taps: int = 0
    conv_bias: bool = True
    limits: tuple[float, float] = (0.0, inf)


def configure(fields: Fields) -> Mamba2Config:
    """Reads the keys of Mamba2Config; defaults are those of transformers."""
    size = fields.integer("hidden_size", MAX_HIDDEN, 4096)
    heads = HeadLayout(
        fields.integer("num_heads", MAX_HEADS, 128),
        fields.integer("n_groups", MAX_HEADS, 8),
        fields.integer("head_dim", MAX_HEAD_DIM, 64),
    )
    if heads.heads % heads.kv_heads:
        raise fields.error("num_heads", f"({heads.heads}) is not a multiple of n_groups ({heads.kv_heads})")
    inner = fields.integer("expand", 64, 2) * size
    if inner != heads.heads * heads.head_dim:
        raise fields.error(
            "num_heads",
            f"({heads.heads}) times head_dim ({heads.head_dim}) must be expand times hidden_size ({inner})",
        )
    layers = fields.integer("num_hidden_layers", MAX_LAYERS, 64)
    return Mamba2Config(
        model_type=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", MAX_VOCAB, 32768),
        hidden_size=size,
        num_layers=layers,
        heads=heads,
        ffn_size=inner,
        eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        rope=RopeConfig(),
        max_positions=LONGEST,
        windows=(None,) * layers,
        tied=fields.flag("tie_word_embeddings"),
        mlp_bias=fields.flag("use_bias"),
        function=FUNCTIONS[fields.require("hidden_act", SILU, "silu")],
        bos_id=next(iter(fields.ids("bos_token_id")), None),
        eos_ids=fields.ids("eos_token_id"),
        states=fields.integer("state_size", MAX_STATES, 128),
        taps=fields.integer("conv_kernel", MAX_TAPS, 4, least=2),
        conv_bias=fields.flag("use_conv_bias", default=True),
        limits=limits(fields),
    )


def limits(fields: Fields) -> tuple[float, float]:
    """Reads the least and the largest step."""
    if not fields.has("time_step_limit"):
        return 0.0, inf
    known = [_number(value) for value in fields.items("time_step_limit")]
    least, most = known if len(known) == 2 else (nan, nan)
    if not 0 <= least <= most:
        raise fields.error("time_step_limit", "must be two numbers, the least and the most, from 0 on")
    return least, most


def _number(value: object) -> float:
    """Returns the number, or NaN for any other value."""
    if value in INFINITY:
        return inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan


def weights(config: Mamba2Config) -> WeightMap:
    """Maps `in_proj`, which makes the gate, x, b, c and dt, and `conv1d`, which convolves x, b and c."""
    parts = mixer_parts(config)
    return WeightMap("backbone.", parts=parts)


def mixer_parts(config: Mamba2Config) -> dict[str, TensorRows]:
    """Returns the modules of a mixer that a checkpoint keeps as one."""
    x, bc = config.heads.heads * config.heads.head_dim, config.heads.kv_heads * config.states
    made = {"z": x, "x": x, "b": bc, "c": bc, "dt": config.heads.heads}
    convolved = {f"conv1d_{name}": made[name] for name in ("x", "b", "c")}
    return in_turn("in_proj", {f"in_proj_{name}": width for name, width in made.items()}) | in_turn(
        "conv1d", convolved
    )


def build(b: GraphBuilder, config: Mamba2Config) -> None:
    """Appends the forward pass; the residual stream is rounded as in other families, whatever
    `residual_in_fp32` says."""
    x = b.embed(EMBEDDING)
    for layer in b.layers():
        prefix = f"backbone.layers.{layer}"
        gated = mixer(b, b.norm(x, f"{prefix}.norm"), f"{prefix}.mixer", config)
        gated, x = b.only_wanted(gated, x)
        x = b.add(x, b.linear(gated, f"{prefix}.mixer.out_proj", hidden(config.hidden_size), config.mlp_bias))
    b.head(b.norm(x, "backbone.norm_f"))


def mixer(b: GraphBuilder, x: Value, prefix: str, config: Mamba2Config) -> Value:
    """Appends a layer of Mamba-2, before its output projection."""
    heads, each = config.heads, config.heads.queries(unit=1)
    inner = heads.queries()
    shared = HeadLayout(heads.heads, heads.kv_heads, config.states).keys()
    axes = {"z": inner, "x": inner, "b": shared, "c": shared, "dt": each}
    made = {
        part: b.linear(x, f"{prefix}.in_proj_{part}", axis, config.mlp_bias) for part, axis in axes.items()
    }
    x, into, out = (convolution(b, made[part], f"{prefix}.conv1d_{part}", config) for part in ("x", "b", "c"))
    scan = SelectiveScan(
        b.layer,
        b.like(x),
        x,
        into,
        out,
        made["dt"],
        log_rate=vector(f"{prefix}.A_log", each),
        dt_bias=vector(f"{prefix}.dt_bias", each),
        skip=vector(f"{prefix}.D", each),
        heads=heads,
        states=config.states,
        limits=config.limits,
    )
    scanned = b.append(scan)
    gated = b.append(GatedActivation(b.layer, b.like(scanned), made["z"], scanned))
    gain = vector(f"{prefix}.norm.weight", inner)
    groups = heads.kv_heads if heads.kv_heads > 1 else None
    return b.append(RMSNorm(b.layer, b.like(gated), gated, gain, config.eps, groups))


def convolution(b: GraphBuilder, x: Value, name: str, config: Mamba2Config) -> Value:
    """Appends the config's function of x, convolved along its sequence."""
    axes = (x.axis, fixed("depth", 1), fixed("taps", config.taps))
    weight = WeightSpec(f"{name}.weight", axes, WeightRole.VECTOR)
    bias = vector(f"{name}.bias", x.axis) if config.conv_bias else None
    return b.append(CausalConvolution(b.layer, b.like(x), x, weight, bias, config.function))
