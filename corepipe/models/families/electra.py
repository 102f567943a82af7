"""ELECTRA's discriminator: BERT without a pooler, the small one with a narrower embedding."""

from __future__ import annotations

from corepipe.models.families import encoder
from corepipe.models.families.encoder import EncoderConfig, base, trunk
from corepipe.models.families.heads import ClassHead, HeadStep
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap
from corepipe.neuron.formats import Function

__all__ = ["base", "class_head", "configure", "trunk", "weights"]

GUESSES = ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head")


def configure(fields: Fields) -> EncoderConfig:
    fields = fields.defaulting("type_vocab_size", 2)
    return encoder.configure(fields, "electra", pooler=False, guess=Function.GELU)


def weights(config: EncoderConfig) -> WeightMap:
    return encoder.weights(config, GUESSES)


def class_head(_config: EncoderConfig) -> ClassHead:
    return ClassHead((HeadStep("classifier.dense", Function.GELU),), "classifier.out_proj")
