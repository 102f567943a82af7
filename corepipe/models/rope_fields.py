"""Rotary embeddings in a configuration, in the spellings that transformers has used over the years.

Contradictions between two spellings, and a factor without a type, are refused by their key.
"""

from __future__ import annotations

from corepipe.errors import shown
from corepipe.models.fields import MAX_POSITIONS, Fields
from corepipe.models.rope import RopeConfig

OLD, NEW = "rope_scaling", "rope_parameters"
"""The keys of the object: beside a `rope_theta`, and with it inside, as transformers 5 has it."""
OUTSIDE = ("rope_theta", "partial_rotary_factor")
"""Keys that may stand in the object or beside it."""
TRAINED = "original_max_position_embeddings"
DEFAULT = "default"
ALIKE = {"none": DEFAULT, "su": "longrope"}
"""Synonyms of types."""
SCALES = ("factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor")
"""Keys that change frequencies, if there is a type that reads them."""
TUNES = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", TRAINED)


def rope_section(fields: Fields) -> Fields:
    """Returns the object, by either name; empty where there is none. Raises UserError for two that differ."""
    old, new = (_filled(fields.section(name)) for name in (OLD, NEW))
    if old is not None and new is not None:
        check_alike(fields, old, new)
    return old or new or fields.without(*fields.values)


def _filled(section: Fields | None) -> Fields | None:
    """Returns None for an empty object, which says as much as none."""
    return section if section is not None and section.values else None


def check_alike(fields: Fields, old: Fields, new: Fields) -> None:
    """Raises UserError where two objects of one configuration contradict each other."""
    if (types := (rope_type(old), rope_type(new)))[0] != types[1]:
        raise new.error("rope_type", f"is {types[1]}, but in {OLD} it is {types[0]}: remove one")
    for key in sorted({*old.values, *new.values} - {"type", "rope_type"}):
        ours, theirs = (
            (section if section.has(key) or key not in OUTSIDE else fields).values.get(key)
            for section in (new, old)
        )
        if ours != theirs:
            raise new.error(key, f"is {_told(ours)}, but in {OLD} it is {_told(theirs)}: remove one")


def _told(value: object) -> str:
    return "absent" if value is None else shown(value, 40)


def rope_type(section: Fields) -> str:
    """Returns the type, by either name.

    Raises UserError where the names differ, and where a scaling key has no type or the default type.
    """
    old, new = (ALIKE.get(name, name) for name in (section.text(key, "") for key in ("type", "rope_type")))
    if old and new and old != new:
        raise section.error("type", f"is {shown(old, 40)}, but rope_type is {shown(new, 40)}: remove one")
    kind = old or new
    said = [key for key in SCALES if section.has(key) and section.values[key] != 1]
    said += [key for key in (*SCALES, *TUNES) if section.has(key) and not kind]
    if said and not kind:
        raise section.error("rope_type", f"is missing, though {said[0]} is given")
    if said and kind == DEFAULT:
        raise section.error(said[0], f"is given, but rope_type is {DEFAULT}: remove one")
    return kind or DEFAULT


def either(fields: Fields, section: Fields, key: str) -> Fields:
    """Returns the object or the config, whichever has the key. Raises UserError where both differ."""
    ours, theirs = section.values.get(key), fields.values.get(key)
    if section.has(key) and fields.says(key) and ours != theirs:
        raise section.error(key, f"is {shown(ours, 40)}, but {shown(theirs, 40)} beside it: remove one")
    return section if section.has(key) else fields


def read_rope(fields: Fields, head_dim: int, partial: bool = False) -> RopeConfig:
    """Reads both spellings: `rope_theta` with `rope_scaling`, and the `rope_parameters` of transformers 5.

    `head_dim` counts the rotated elements of a head; only with `partial` may that be a part of it.
    """
    section = rope_section(fields)
    for key, value in section.values.items():
        if isinstance(value, dict):
            raise section.error(key, "is an object: rope settings that differ by layer are not supported")
    kind = rope_type(section)
    theta = either(fields, section, "rope_theta").number("rope_theta", 1.001, 1e12, 10000.0)
    partial_from = either(fields, section, "partial_rotary_factor")
    if not partial and partial_from.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
        raise partial_from.error("partial_rotary_factor", "other than 1 is not supported for this family")
    if kind == DEFAULT:
        return RopeConfig(theta=theta, freq_factors=_freq_factors(fields, head_dim))
    if kind == "linear":
        return RopeConfig("linear", theta, factor=section.number("factor", 1e-3, 1e6))
    if kind == "llama3":
        return _llama3(fields, section, theta)
    if kind == "yarn":
        return _yarn(fields, section, theta)
    raise section.error("rope_type", f"{kind!r} is not supported (known: default, linear, llama3, yarn)")


def _freq_factors(fields: Fields, head_dim: int) -> tuple[float, ...] | None:
    factors = fields.values.get("rope_freq_factors")
    if not isinstance(factors, tuple):
        return None
    if len(factors) != head_dim // 2 or not all(1e-6 <= factor <= 1e6 for factor in factors):
        raise fields.error("rope_freq_factors", f"must be {head_dim // 2} positive numbers")
    return factors


def _llama3(fields: Fields, section: Fields, theta: float) -> RopeConfig:
    low = section.number("low_freq_factor", 1e-3, 1e6)
    high = section.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise section.error("high_freq_factor", f"({high:g}) must exceed low_freq_factor ({low:g})")
    return RopeConfig(
        "llama3",
        theta,
        factor=section.number("factor", 1e-3, 1e6),
        original_max_positions=either(fields, section, TRAINED).integer(TRAINED, MAX_POSITIONS),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(fields: Fields, section: Fields, theta: float) -> RopeConfig:
    trained = fields.integer("max_position_embeddings", MAX_POSITIONS)
    trained = either(fields, section, TRAINED).integer(TRAINED, MAX_POSITIONS, default=trained)
    return RopeConfig(
        "yarn",
        theta,
        factor=section.number("factor", 1e-3, 1e6),
        original_max_positions=trained,
        beta_fast=section.number("beta_fast", 0.0, 1e6, 32.0) or 32.0,
        beta_slow=section.number("beta_slow", 0.0, 1e6, 1.0) or 1.0,
        truncate=section.flag("truncate", default=True),
        attention_factor=_optional(section, "attention_factor"),
        mscale=_optional(section, "mscale"),
        mscale_all_dim=_optional(section, "mscale_all_dim"),
    )


def _optional(section: Fields, key: str) -> float | None:
    return section.number(key, 0.0, 1e6) if section.has(key) else None
