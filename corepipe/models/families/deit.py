"""DeiT: ViT with a distillation token beside the class token, which may have classes of its own."""

from __future__ import annotations

from corepipe.models.config import Fields
from corepipe.models.families.heads import ClassHead
from corepipe.models.families.vit import VitConfig, build, patches, trunk, weights

__all__ = ["CLASSES", "build", "configure", "trunk", "weights"]

CLASSES = ClassHead((), "classifier", taught=("cls_classifier", "distillation_classifier"))


def configure(fields: Fields) -> VitConfig:
    return patches(fields, "deit", ("cls_token", "distillation_token"))
