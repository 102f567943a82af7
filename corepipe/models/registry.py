"""From a path to a Model: which family it is, its configuration, checkpoint, Graph and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from corepipe.errors import UserError
from corepipe.models import checkpoint as checkpoints
from corepipe.models import llama, mistral, qwen2, qwen3
from corepipe.models.checkpoint import PICKLES, Checkpoint
from corepipe.models.config import Fields, ModelConfig, read_json
from corepipe.models.gguf import GgufCheckpoint, GgufFile
from corepipe.models.gguf_config import architecture, config_fields
from corepipe.models.gguf_tokenizer import from_gguf
from corepipe.models.safetensors import INDEX, SafetensorsCheckpoint
from corepipe.models.tokenizer import Tokenizer, from_directory
from corepipe.neuron.graph import Format, Graph


class Family(Protocol):
    """What a model file offers."""

    def configure(self, fields: Fields) -> ModelConfig:
        """Reads and checks the configuration; raises UserError."""

    def build(self, config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
        """Describes the forward pass."""


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3}
)
"""Hugging Face's model_type -> the module that builds it."""


class Model:
    """A model on disk.  Nothing but its configuration is read until it is asked for."""

    def __init__(self, path: Path, name: str, fields: Fields, gguf: GgufFile | None) -> None:
        self.path = path
        self.name = name
        self._family = family(fields)
        self._gguf = gguf
        self.config = self._family.configure(fields)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The weights; raises UserError where the files are missing, broken, or pickles."""
        if self._gguf is None:
            return SafetensorsCheckpoint(self.path)
        heads = self.config.heads
        permuted = {"q_proj": heads.heads, "k_proj": heads.kv_heads}
        return GgufCheckpoint(self._gguf, permuted if architecture(self._gguf) == "llama" else {})

    def graph(self, fmt: Format, max_positions: int | None = None) -> Graph:
        """The forward pass for up to `max_positions` positions (None: all that the model claims)."""
        most = self.config.max_positions
        positions = most if max_positions is None else max_positions
        if not 1 <= positions <= most:
            raise UserError(f"{self.name} has {most} positions, {positions} are asked for", "max_model_len")
        return self._family.build(self.config, fmt, positions, self.name)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self._gguf is None:
            return from_directory(self.path, self.config.eos_ids, self.config.bos_id)
        return from_gguf(self._gguf, self.config.eos_ids)

    def check(self, graph: Graph) -> None:
        """Compares all weights of `graph` with the checkpoint's header; raises UserError."""
        checkpoints.check(graph, self.checkpoint)


def family(fields: Fields) -> Family:
    """The module for a configuration's model_type; raises UserError for those we do not know."""
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        raise fields.error(
            "model_type", f"{model_type!r:.60} is not supported (known: {', '.join(FAMILIES)})"
        )
    return FAMILIES[model_type]


def load(path: Path) -> Model:
    """A Hugging Face directory, a .gguf file, or a directory with one .gguf file.

    Raises UserError where the path is none of these, or the model is not supported.
    """
    if path.is_dir():
        return _load_directory(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file or directory")
    if path.suffix == ".gguf":
        return _load_gguf(path)
    raise _refused_file(path)


def _refused_file(path: Path) -> UserError:
    if path.suffix in PICKLES:
        return UserError(f"{path}: pickled weights can run code and are refused; use safetensors or GGUF")
    return UserError(f"{path}: give the model's directory, or a .gguf file")


def _load_gguf(path: Path) -> Model:
    gguf = GgufFile(path)
    return Model(path, path.stem, config_fields(gguf), gguf)


def _load_directory(path: Path) -> Model:
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise UserError(
                f"{path}: holds neither a config.json nor exactly one .gguf file ({len(files)} found)"
            )
        return _load_gguf(files[0])
    _refuse_pickles(path)
    values = read_json(path / "config.json")
    fields = Fields(path / "config.json", values)
    generation = path / "generation_config.json"
    if generation.is_file():
        also = Fields(generation, read_json(generation)).ids("eos_token_id")
        fields = fields.replace("eos_token_id", list(dict.fromkeys(fields.ids("eos_token_id") + also)))
    return Model(path, _directory_name(path), fields, None)


def _refuse_pickles(path: Path) -> None:
    """Pickles beside safetensors are ignored; alone they are refused by name."""
    if (path / INDEX).is_file() or any(path.glob("*.safetensors")):
        return
    for file in sorted(path.iterdir()):
        if file.suffix in PICKLES and file.name != "training_args.bin":
            raise _refused_file(file)


def _directory_name(path: Path) -> str:
    """The directory's name; for a snapshot in the hub's cache (models--org--name/snapshots/hash) org/name."""
    path = path.resolve()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name
