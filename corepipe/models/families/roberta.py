"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with one token type and positions that start at the third row."""

from __future__ import annotations

from corepipe.models.config import Fields
from corepipe.models.families import encoder
from corepipe.models.families.encoder import EncoderConfig, build

__all__ = ["build", "configure"]

OFFSET = 2
"""Positions start after the padding token's id, 1."""


def configure(fields: Fields) -> EncoderConfig:
    return encoder.configure(fields.defaulting("type_vocab_size", 1), "roberta", offset=OFFSET)
