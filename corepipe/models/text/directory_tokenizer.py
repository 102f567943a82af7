"""A tokenizer from a Hugging Face directory: tokenizer.json, or what transformers makes one of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import Tokenizer as Backend

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.files import read_bytes
from corepipe.models.config import read_json
from corepipe.models.text.tokenizer import SPECIAL_NAMES, Tokenizer, library_failures, set_bos_eos

MAX_TOKENIZER_BYTES = 1 << 27
"""Of tokenizer.json; vocabularies of 262,144 tokens with their merges take some 35 MB."""
MAX_TEMPLATE_BYTES = 1 << 20

CONVERTED = (("tokenizer.model",), ("vocab.json", "merges.txt"))
"""Files of which transformers makes a tokenizer.  Without them it makes an empty one for some families."""


def from_directory(path: Path, eos_ids: Iterable[int] = (), bos_id: int | None = None) -> Tokenizer:
    """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja of a Hugging Face directory.

    A directory without tokenizer.json goes through transformers, if that is installed.
    """
    config = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
    backend = _read_backend(path)
    special = {name: text for name in SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None}
    if "add_bos_token" in config or "add_eos_token" in config:
        set_bos_eos(
            backend,
            special.get("bos_token") if config.get("add_bos_token") else None,
            special.get("eos_token") if config.get("add_eos_token") else None,
            path / "tokenizer_config.json",
        )
    said = config.get("response_template")
    response_template = said if isinstance(said, dict) else None
    return Tokenizer(backend, special, _chat_template(path, config), eos_ids, bos_id, response_template)


def _read_backend(path: Path) -> Backend:
    file = path / "tokenizer.json"
    backend = _parse(file) if file.is_file() else _convert_with_transformers(path)
    if backend.get_vocab_size(with_added_tokens=False) == 0:
        raise UserError(f"{path}: its tokenizer has no vocabulary: no text can be encoded")
    return backend


def _parse(file: Path) -> Backend:
    data = read_bytes(file, MAX_TOKENIZER_BYTES, "a tokenizer")
    try:
        with library_failures(f"{file}: cannot be read"):
            backend = Backend.from_buffer(data)
    except (TypeError, ValueError) as error:
        raise UserError(f"{file}: cannot be read: {shown(str(error), 200)}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _convert_with_transformers(path: Path) -> Backend:
    """For directories with a sentencepiece model or vocab.json and merges.txt only."""
    if not any(all((path / name).is_file() for name in names) for names in CONVERTED):
        others = ", nor ".join(map(" with ".join, CONVERTED))
        raise UserError(
            f"{path}: has no tokenizer.json, nor {others}; copy the model's tokenizer files there"
        )
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # on torch, which we don't need
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 -- takes a second, and is rarely needed
    except ImportError as error:
        raise UserError(
            f"{path}: has no tokenizer.json; install transformers to convert its tokenizer"
        ) from error
    try:
        # Nothing is downloaded:
        converted = AutoTokenizer.from_pretrained(  # nosec B615
            str(path), local_files_only=True, trust_remote_code=False
        )
        backend = converted.backend_tokenizer
    except Exception as error:  # whatever a converter trips over is the directory's fault
        reason = shown(" ".join(str(error).split()), 200)
        raise UserError(
            f"{path}: has no tokenizer.json, and transformers cannot make one: {reason}"
        ) from error
    if not isinstance(backend, Backend):
        raise UserError(f"{path}: has no tokenizer.json, and its tokenizer has no fast form")
    return backend


def _token_text(value: object) -> str | None:
    """A token written as a string, or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(path: Path, config: Mapping[str, object]) -> str | None:
    """chat_template.jinja, or the key in tokenizer_config.json: a text, or a list of named ones."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return read_bytes(file, MAX_TEMPLATE_BYTES, "a chat template").decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{file}: cannot be read as UTF-8 text: {error}") from error
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
