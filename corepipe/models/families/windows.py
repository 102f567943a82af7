"""Alternating layers: some attend to the whole context, others to a window, each kind with its positions."""

from __future__ import annotations

from corepipe.models.config import ModelConfig, sliding_windows
from corepipe.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from corepipe.models.rope import RopeConfig
from corepipe.models.rope_fields import check_alike, read_rope

Windows = tuple[int | None, ...]


def rotated(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Returns which layers have positions: those with a 1 in `no_rope_layers`, or all but each
    `no_rope_layer_interval`-th, by default the fourth."""
    every = fields.integer("no_rope_layer_interval", MAX_LAYERS, default=4)
    if fields.values.get("no_rope_layers") in (None, []):
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    known = tuple(value == 1 for value in fields.items("no_rope_layers"))
    if len(known) != layers:
        raise fields.error("no_rope_layers", f"must have one entry for each of {layers} layers")
    return known


def alternating(fields: Fields, layers: int, window: int, pattern: int) -> Windows:
    """Returns the windows: by default every `pattern`-th layer has none, else `layer_types` decides."""
    size = fields.integer("sliding_window", MAX_POSITIONS, default=window)
    every = fields.integer("sliding_window_pattern", MAX_LAYERS, default=pattern)
    if fields.has("layer_types"):
        return sliding_windows(fields, size, 0, layers)
    return tuple(size if (layer + 1) % every else None for layer in range(layers))


def layer_ropes(
    fields: Fields, config: ModelConfig, windows: Windows, local_theta: str = "rope_theta"
) -> tuple[RopeConfig | None, ...]:
    """Returns scaled rotary positions for layers with the whole context, plain ones for windows.

    Both spellings: `rope_parameters` with an object for each kind of layer, and `rope_theta`, `rope_scaling`
    for the former beside a base for the latter, `local_theta`.
    """
    section = fields.section("rope_parameters")
    kinds = [
        None if section is None else section.section(f"{kind}_attention") for kind in ("full", "sliding")
    ]
    if kinds[0] is not None and (scaling := fields.section("rope_scaling")) is not None:
        check_alike(fields, scaling, kinds[0])
    full, local = (_rope(fields, config, kind) for kind in kinds)
    if kinds[1] is None:
        local = RopeConfig(theta=fields.number(local_theta, 1.001, 1e12, 10000.0))
    return tuple(local if window else full for window in windows)


def _rope(fields: Fields, config: ModelConfig, kind: Fields | None) -> RopeConfig:
    """Reads the rotary positions of one kind of layer, from its object or the config itself."""
    if kind is not None:
        fields = fields.without("rope_scaling", *kind.values).replace("rope_parameters", dict(kind.values))
    return read_rope(
        fields, config.rotary_dim or config.heads.head_dim, partial=config.rotary_dim is not None
    )
