"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with one token type and positions that start at the third row."""

from __future__ import annotations

from corepipe.models.families import encoder
from corepipe.models.families.encoder import EncoderConfig, base, trunk
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.fields import MAX_VOCAB, Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.formats import Function

__all__ = ["base", "class_head", "configure", "trunk", "weights"]

PADDING = 1
"""The padding token's id; positions start after it."""
GUESSES = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")


def configure(fields: Fields) -> EncoderConfig:
    offset = fields.integer("pad_token_id", MAX_VOCAB, PADDING, least=0) + 1
    fields = fields.defaulting("type_vocab_size", 1)
    return encoder.configure(fields, "roberta", offset=offset, guess=Function.GELU)


def weights(config: EncoderConfig) -> WeightMap:
    return encoder.weights(config, GUESSES)


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("classifier.dense", Function.TANH),), "classifier.out_proj")
