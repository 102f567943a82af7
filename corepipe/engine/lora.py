"""LoRA adapters: their names, `--lora-modules` as vLLM reads it, and the messages that load them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""Names of adapters: such a name is one step of a path, and no way out of a directory."""


class LoraModule(msgspec.Struct, frozen=True):
    """An adapter that is loaded at the start. base_model_name: without effect, as an adapter belongs to the
    model whose flag it is."""

    name: Annotated[str, msgspec.Meta(pattern=f"^{ADAPTER_NAME}$")]
    path: Annotated[str, msgspec.Meta(min_length=1)]
    base_model_name: str | None = None


def is_adapter_name(name: str) -> bool:
    """Tells whether an adapter may have this name."""
    return re.fullmatch(ADAPTER_NAME, name) is not None


def read_lora_module(text: str) -> LoraModule:
    """Reads NAME=PATH, or an object of JSON. Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            module = msgspec.json.decode(text, type=LoraModule)
        except msgspec.DecodeError as error:
            raise ValueError(f"{text}: {error}") from None
    else:
        name, _, path = text.partition("=")
        module = LoraModule(name, path)
    if not is_adapter_name(module.name) or not module.path:
        raise ValueError(
            f"{text}: give NAME=PATH, or JSON with name and path; a name has letters, digits and . _ -"
        )
    return module


class AdapterRef(msgspec.Struct, frozen=True, array_like=True):
    """A LoRA adapter under the name that a request gave it; the engine finds it by the hash of its
    content."""

    name: str
    digest: str


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Tells the engine to load the LoRA adapter in the directory `path`; an AdapterReport is the answer.

    `digest`: the hash of the content that is wanted, where it was loaded before; empty where any will do.
    `replaces`: the hash of an adapter that is unloaded when this one is loaded.
    """

    name: str
    path: str
    digest: str = ""
    replaces: str = ""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Tells the engine to drop the adapter of this content when the last request with it has ended."""

    digest: str


class AdapterReport(msgspec.Struct, frozen=True, array_like=True):
    """The result of a LoadAdapter. `digest`: a hash of the adapter's content; `bytes`: the host memory that
    it takes. `error`: why it was not loaded, and then the digest is that of the command; empty where it was.
    `retry`: it may be loaded later, as all places are taken, or the engine was lost."""

    name: str
    path: str
    digest: str = ""
    rank: int = 0
    bytes: int = 0
    error: str = ""
    retry: bool = False
