"""BERT, and the MiniLMs that are BERTs of another size."""

from __future__ import annotations

from corepipe.models.config import Fields
from corepipe.models.families import encoder
from corepipe.models.families.encoder import EncoderConfig, build

__all__ = ["build", "configure"]


def configure(fields: Fields) -> EncoderConfig:
    return encoder.configure(fields.defaulting("type_vocab_size", 2), "bert")
