"""DeiT: ViT with a distillation token beside the class token; it may have its own classifier."""

from __future__ import annotations

from corepipe.models.families.heads import ClassHead
from corepipe.models.families.vit import VitConfig, base, patches, trunk, weights
from corepipe.models.fields import Fields

__all__ = ["base", "class_head", "configure", "trunk", "weights"]


def configure(fields: Fields) -> VitConfig:
    return patches(fields, "deit", ("cls_token", "distillation_token"))


def class_head(_config: VitConfig) -> ClassHead:
    return ClassHead((), "classifier", taught=("cls_classifier", "distillation_classifier"))
