"""A tokenizer from a Hugging Face directory: tokenizer.json, or the files that transformers converts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.files import CHAT_TEMPLATES, read_bytes
from corepipe.models.text.special_tokens import CONFIG, add_tokens, read_if_there
from corepipe.models.text.tokenizer import Tokenizer, library_failures

MAX_TOKENIZER_BYTES = 1 << 27
"""The most bytes of tokenizer.json; vocabularies of 262,144 tokens with their merges take some 35 MB."""
MAX_TEMPLATE_BYTES = 1 << 20

CONVERTED = (("tokenizer.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
"""Files that transformers converts to a tokenizer. Without them it makes an empty one for some families."""

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of chat templates: the usual one, and the one for chats with tools."""


def from_directory(
    path: Path, eos_ids: Iterable[int] = (), bos_id: int | None = None, *, lowercase: bool = False
) -> Tokenizer:
    """Reads tokenizer.json, the files that name its special tokens, and the chat templates of a Hugging Face
    directory.

    A directory without tokenizer.json goes through transformers, if that is installed.
    lowercase: texts are lowered before the tokenizer reads them (sentence-transformers' `do_lower_case`).
    """
    config = read_if_there(path / CONFIG)
    if (path / "tokenizer.json").is_file():
        backend = _checked(_parse(path / "tokenizer.json"), path)
        special = add_tokens(backend, path, config)
    else:
        converted = _convert_with_transformers(path)
        backend, special = _checked(converted.backend_tokenizer, path), dict(converted.special_tokens_map)
    if lowercase:
        own = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    backend.encode_special_tokens = config.get("split_special_tokens") is True
    said, templates = config.get("response_template"), _chat_templates(path, config)
    return Tokenizer(
        backend,
        special,
        templates.get(DEFAULT),
        eos_ids,
        bos_id,
        said if isinstance(said, dict) else None,
        templates.get(TOOL_USE),
    )


def _checked(backend: object, path: Path) -> Backend:
    if not isinstance(backend, Backend):
        raise UserError(f"{path}: has no tokenizer.json, and its tokenizer has no fast form")
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


def _convert_with_transformers(path: Path) -> Any:  # noqa: ANN401 -- a class of a library that may be missing
    """Converts a tokenizer of other files by transformers."""
    if not any(all((path / name).is_file() for name in names) for names in CONVERTED):
        others = ", nor ".join(map(" with ".join, CONVERTED))
        raise UserError(
            f"{path}: has no tokenizer.json, nor {others}; copy the model's tokenizer files there"
        )
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about torch, which is not needed
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 -- takes a second, and is rarely needed
    except ImportError as error:
        raise UserError(
            f"{path}: has no tokenizer.json; install transformers to convert its tokenizer"
        ) from error
    try:
        # Nothing is downloaded:
        return AutoTokenizer.from_pretrained(  # nosec B615
            str(path), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # any failure of a converter is the directory's fault
        reason = shown(" ".join(str(error).split()), 200)
        raise UserError(
            f"{path}: has no tokenizer.json, and transformers cannot make one: {reason}"
        ) from error


def _chat_templates(path: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Returns templates by name: those in files, else one or a list in tokenizer_config.json."""
    files = {file.stem: file for file in sorted((path / CHAT_TEMPLATES).glob("*.jinja"))}
    if (path / "chat_template.jinja").is_file():
        files[DEFAULT] = path / "chat_template.jinja"
    if files:
        return {name: _read_template(file) for name, file in files.items()}
    value = config.get("chat_template")
    listed = value if isinstance(value, list) else [{"name": DEFAULT, "template": value}]
    named = {one.get("name"): one.get("template") for one in listed if isinstance(one, dict)}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}


def _read_template(file: Path) -> str:
    try:
        return read_bytes(file, MAX_TEMPLATE_BYTES, "a chat template").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: cannot be read as UTF-8 text: {error}") from error
