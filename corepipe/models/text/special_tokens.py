"""Special and added tokens of a Hugging Face directory, from its files in transformers' order of precedence.

tokenizer_config.json names them. Where it lists the added tokens by id (`added_tokens_decoder`), no other
file is read; else special_tokens_map.json precedes it, and added_tokens.json lists further ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from corepipe.errors import UserError, shown
from corepipe.models.fields import MAX_VOCAB, read_json

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names of every tokenizer; a model may have more (`image_token`), with the same ending."""
FURTHER = ("extra_special_tokens", "additional_special_tokens")
"""Keys with lists of special tokens without names, or with further names."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def read_if_there(path: Path) -> dict[str, object]:
    """Returns the object in a JSON file, empty where there is no file; raises UserError for anything else."""
    return read_json(path) if path.is_file() else {}


def add_tokens(backend: Backend, folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Adds the tokens that a directory's files name to the tokenizer; returns their texts by name.

    Tokens that it has keep their ids, and others get the next ones. Raises UserError, which names the file,
    for invalid tokens.
    """
    listed = config.get("added_tokens_decoder")
    said = _Said(folder, config, {} if listed is not None else read_if_there(folder / MAP))
    named, further = said.named(), said.further()
    if listed is None:
        numbered = _missing(backend, _added(folder / ADDED, [*named.values(), *further]))
    else:
        numbered = _listed(listed, folder / CONFIG)
    backend.add_tokens(numbered)
    backend.add_tokens(_missing(backend, [*named.values(), *further]))
    return {name: token.content for name, token in named.items()}


class _Said:
    """Special tokens of tokenizer_config.json, and those of special_tokens_map.json, which precede them."""

    def __init__(self, folder: Path, config: Mapping[str, object], mapped: Mapping[str, object]) -> None:
        self._values = {**config, **mapped}
        self._folder = folder
        self._mapped = mapped

    def named(self) -> dict[str, AddedToken]:
        """Returns tokens with names: tokenizers' own, in their order, then the model's."""
        entries = {name: self._values.get(name) for name in NAMES}
        entries |= {name: one for name, one in self._values.items() if _names_token(name, one)}
        for key in FURTHER:
            if isinstance(names := self._values.get(key), dict):
                entries |= names
        return {name: self._token(name, one) for name, one in entries.items() if one is not None}

    def further(self) -> list[AddedToken]:
        """Returns tokens without names, from the first list that is present."""
        for key in FURTHER:
            if isinstance(values := self._values.get(key), list) and values:
                return [self._token(key, value) for value in values]
        return []

    def _token(self, name: str, value: object) -> AddedToken:
        return _token(value, self._folder / (MAP if name in self._mapped else CONFIG), name)


def _names_token(name: str, value: object) -> bool:
    """Tells whether the key is a special token of the model's own, not a flag such as `add_bos_token`."""
    return name.endswith("_token") and name not in NAMES and isinstance(value, str | dict)


def _missing(backend: Backend, tokens: Iterable[AddedToken]) -> list[AddedToken]:
    """Returns the tokens that the tokenizer lacks; it keeps the properties of the others."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    return [token for token in tokens if token.content not in known]


def _added(file: Path, special: Iterable[AddedToken]) -> list[AddedToken]:
    """Returns the tokens of added_tokens.json in the order of their ids."""
    names = {token.content for token in special}
    ids = {text: _id(value, file, text) for text, value in read_if_there(file).items()}
    return [AddedToken(text, special=text in names) for text in sorted(ids, key=ids.__getitem__)]


def _listed(listed: object, source: Path) -> list[AddedToken]:
    """Returns the tokens of `added_tokens_decoder` in the order of their ids."""
    if not isinstance(listed, dict):
        raise UserError(f"{source}: added_tokens_decoder must be an object, not {shown(listed, 60)}")
    ids = {key: _id(int(key) if key.isdecimal() else key, source, key) for key in listed}
    return [
        _token(listed[key], source, f"added_tokens_decoder.{key}", special=False)
        for key in sorted(ids, key=ids.__getitem__)
    ]


def _id(value: object, source: Path, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_VOCAB:
        raise UserError(f"{source}: {shown(name, 60)} must have a token id, not {shown(value, 60)}")
    return value


def _token(value: object, source: Path, name: str, *, special: bool = True) -> AddedToken:
    """Reads a token written as a text, or as an object with its content.

    special: the default where the object does not decide.
    """
    if isinstance(value, str):
        return AddedToken(value, special=special)
    text = value.get("content") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(text, str):
        raise UserError(f"{source}: {shown(name, 60)} must be a token, not {shown(value, 60)}")
    flags = {flag: value[flag] for flag in FLAGS if isinstance(value.get(flag), bool)}
    return AddedToken(text, special=special or value.get("special") is True, **flags)
