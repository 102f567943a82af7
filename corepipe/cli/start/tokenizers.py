"""Tokenizers of models that are to be served, which are tried before the first request needs them."""

from __future__ import annotations

from pathlib import Path

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.models.text.tokenizer_trial import try_tokenizer


def tokenizer_of(path: Path, model: registry.Model, template: str | None = None) -> Tokenizer:
    """Returns the tokenizer of the model at `path`, with its own chat template or another one.

    Raises UserError for files that cannot be used.
    """
    if path.is_dir():
        try_tokenizer(path)
    tokenizer = model.tokenizer()
    if template is not None:
        return tokenizer.with_chat_template(template)
    try:
        tokenizer.check_chat_template()
    except UserError as error:
        raise UserError(f"{path}: {error.message}") from error
    return tokenizer
