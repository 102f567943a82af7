"""BERT, and the MiniLMs, which are BERTs of other sizes."""

from __future__ import annotations

from corepipe.models.families import encoder
from corepipe.models.families.encoder import EncoderConfig, base, trunk, weights
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.fields import Fields
from corepipe.neuron.formats import Function

__all__ = ["base", "class_head", "configure", "trunk", "weights"]


def configure(fields: Fields) -> EncoderConfig:
    return encoder.configure(fields.defaulting("type_vocab_size", 2), "bert")


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("bert.pooler.dense", Function.TANH),), "classifier")
