"""DeiT: ViT with a distillation token beside the class token."""

from __future__ import annotations

from corepipe.models.config import Fields
from corepipe.models.families.vit import VitConfig, build, patches

__all__ = ["build", "configure"]


def configure(fields: Fields) -> VitConfig:
    return patches(fields, "deit", first=2)
