"""Loads models: from a path to the family, its configuration, the checkpoint, the Graph and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corepipe.errors import UserError, shown
from corepipe.models import families, published
from corepipe.models.checkpoints.checkpoint import PICKLES, Checkpoint
from corepipe.models.checkpoints.files import check_links
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from corepipe.models.checkpoints.gguf_config import config_fields, gguf_family
from corepipe.models.checkpoints.gguf_shards import open_gguf, same_model, stem_of
from corepipe.models.checkpoints.gptq import GptqCheckpoint
from corepipe.models.checkpoints.joined import JoinedCheckpoint
from corepipe.models.checkpoints.mxfp4 import Mxfp4Checkpoint
from corepipe.models.checkpoints.quantization import AWQ, GPTQ, MXFP4, Quantization, read_quantization
from corepipe.models.checkpoints.quantized import QuantizedCheckpoint
from corepipe.models.checkpoints.safetensors import INDEX, SafetensorsCheckpoint
from corepipe.models.config import ModelConfig
from corepipe.models.families import FAMILIES
from corepipe.models.families.heads import ClassHead, hidden_width, put_on, vectors_of
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields, read_json
from corepipe.models.sentence_transformers import SentenceModel, read_sentence_model
from corepipe.models.task_choice import Subject, choose
from corepipe.models.tasks import TaskInfo
from corepipe.models.weight_map import MappedCheckpoint, WeightMap
from corepipe.neuron.formats import FORMATS, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import InputKind, Value

if TYPE_CHECKING:
    from corepipe.models.text.tokenizer import Tokenizer


def _nothing(*_given: object) -> None:
    """Stands for a function that a family does not have."""


def _plain_weights(_config: ModelConfig) -> WeightMap:
    """Returns the map where every weight is a tensor of its own, under its name."""
    return WeightMap()


@dataclass(frozen=True, slots=True)
class Family:
    """The functions that a module of `families` offers; each family has its own kind of config.

    configure: reads and checks the configuration; raises UserError. weights: maps the graph's weights to
    tensors of a checkpoint. build: appends the Ops of the forward pass. trunk, base: an encoder has these
    instead, of which one appends all Ops up to its hidden states, and the other those of its own result.
    class_head: describes how classes are computed from hidden states. builder: of a network over images.
    """

    configure: Callable[[Fields], ModelConfig]
    weights: Callable[[Any], WeightMap] = _plain_weights
    build: Callable[[Any, Any], None] = _nothing
    trunk: Callable[[GraphBuilder, Any], Value] | None = None
    base: Callable[[GraphBuilder, Value, Any], None] = _nothing
    class_head: Callable[[Any], ClassHead | None] = _nothing
    builder: type[GraphBuilder] = GraphBuilder


class Architecture:
    """A model's forward pass without its weights: enough to simulate, plan and predict it.

    `name` is that of the directory, the file or the published model; `config` has been checked. max_tokens:
    the length at which texts are truncated, for models without a directory that states it.
    """

    def __init__(self, name: str, fields: Fields, max_tokens: int | None = None) -> None:
        self.name = name
        self._max_tokens = max_tokens
        self._fields = fields
        self._family = family(fields)
        self.config = self._family.configure(fields)

    def resized(self, image: int) -> Architecture:
        """Returns the model for square images of `image` pixels a side. Raises UserError for other sizes."""
        return Architecture(self.name, self._fields.replace("image_size", image))

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model claims to take, in tokens."""
        return self.config.max_positions

    @property
    def weight_map(self) -> WeightMap:
        """The differences between the family's checkpoints and the graph."""
        return self._family.weights(self.config)

    @property
    def reads_text(self) -> bool:
        graph = Architecture.graph(self, FORMATS["bf16"])
        return any(given.kind is InputKind.TOKENS for given in graph.inputs)

    @cached_property
    def parameters(self) -> int:
        """The number of elements of all weights; tied weights count once."""
        graph = self.graph(FORMATS["bf16"])
        return sum(prod(spec.shape) for spec in graph.weights() if spec.name not in graph.tied)

    def graph(self, fmt: Format, max_positions: int | None = None, task: TaskInfo | None = None) -> Graph:
        """Returns the forward pass for up to `max_positions` positions (None: all that the model claims).

        Its output is the logits, or the family's own result; with a `task` that has a head it is the task's
        result before the activation of scores.
        """
        most = self.config.max_positions
        positions = most if max_positions is None else max_positions
        if not 1 <= positions <= most:
            raise UserError(f"{self.name} has {most} positions, {positions} were requested", "max_model_len")
        family, config, head = self._family, self.config, None if task is None else task.head
        if head is not None and family.trunk is None:
            return vectors_of(Architecture.graph(self, fmt, positions), config, head)
        b = family.builder(config, positions, every_row=family.trunk is not None)
        if family.trunk is None:
            family.build(b, config)
        elif head is None:
            family.base(b, family.trunk(b, config), config)
        else:
            put_on(b, family.trunk(b, config), head, family.class_head(config))
        return b.finish(self.name, fmt)

    def task(self, asked: str = "auto") -> TaskInfo:
        """Describes what the model does for a task by name, or for `auto`; reads no weights.

        Raises UserError for a task that the model cannot do.
        """
        graph, trunk = Architecture.graph(self, FORMATS["bf16"]), self._family.trunk
        subject = Subject(
            fields=self._fields,
            folder=self._folder,
            graph=graph,
            width=self.config.hidden_size if trunk is not None else hidden_width(graph),
            encoder=trunk is not None,
            classes=self._family.class_head(self.config) is not None,
            sentence=self._sentence,
        )
        return choose(asked, subject)

    @property
    def _folder(self) -> Path | None:
        """The model's directory, where it has Hugging Face's layout."""
        file = self._fields.path
        return file.parent if file.name == "config.json" and file.is_file() else None

    @cached_property
    def _sentence(self) -> SentenceModel:
        if self._folder is None:
            return SentenceModel(max_tokens=self._max_tokens)
        return read_sentence_model(self._folder)


class Model(Architecture):
    """A model on disk. Only its configuration is read at first, the rest when it is needed."""

    def __init__(self, path: Path, name: str, fields: Fields, gguf: GgufFile | None) -> None:
        _refuse_code(fields)
        quantization = read_quantization(fields)
        super().__init__(name, fields)
        self.path = path
        self._gguf = gguf
        self._quantization = quantization
        refusals = (super(Model, self).graph(fmt).refusal() for fmt in FORMATS.values())
        why = next(refusals)
        if why is not None and all(refusals):
            raise self._uncomputed(why)

    def graph(self, fmt: Format, max_positions: int | None = None, task: TaskInfo | None = None) -> Graph:
        """Returns the forward pass. Raises UserError where the executors cannot compute it in `fmt`."""
        graph = super().graph(fmt, max_positions, task)
        if (why := graph.refusal()) is not None:
            raise self._uncomputed(why)
        return graph

    def _uncomputed(self, why: str | None) -> UserError:
        """Returns the error for a model that can be timed but not computed."""
        model_type = self._fields.text("model_type")
        return self._fields.error(
            "model_type",
            f"{model_type} is timed, not computed yet ({why}): it can be simulated, planned and predicted, "
            f"not served (served are {', '.join(computed_families())})",
        )

    @cached_property
    def checkpoint(self) -> MappedCheckpoint:
        """The weights under the graph's names; UserError where files are missing, broken, or pickles."""
        return MappedCheckpoint(self._stored(), self.weight_map)

    def _stored(self) -> Checkpoint:
        """Opens the checkpoint's files."""
        if self._gguf is None:
            plain = SafetensorsCheckpoint(self.path)
            own = plain if self._quantization is None else _quantised(plain, self._quantization)
            parts = {name: SafetensorsCheckpoint(at) for name, at in self._sentence.folders.items()}
            return JoinedCheckpoint(own, parts) if parts else own
        heads = self.config.heads
        rows = {"attn_q": heads.heads, "attn_k": heads.kv_heads}
        return GgufCheckpoint(self._gguf, gguf_family(self._gguf), rows)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        # An engine needs the tokenizer for grammars alone, and a simulation does not need it.
        from corepipe.models.text.directory_tokenizer import from_directory  # noqa: PLC0415
        from corepipe.models.text.gguf_tokenizer import from_gguf  # noqa: PLC0415
        from corepipe.models.text.tokenizer import no_tokenizer  # noqa: PLC0415

        if not self.reads_text:
            return no_tokenizer()
        if self._gguf is None:
            ends, lowercase = self.config.eos_ids, self._sentence.lowercase
            return from_directory(self.path, ends, self.config.bos_id, lowercase=lowercase)
        return from_gguf(self._gguf, self.config.eos_ids)

    def check(self, graph: Graph) -> None:
        """Compares all weights of `graph` with the checkpoint's headers; raises UserError."""
        self.checkpoint.check(graph)


def family(fields: Fields) -> Family:
    """Returns the family of a configuration's model_type; raises UserError for unknown ones."""
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        raise fields.error(
            "model_type", f"{shown(repr(model_type), 60)} is not supported (known: {', '.join(FAMILIES)})"
        )
    module = import_module(f"{families.__name__}.{FAMILIES[model_type]}")
    offered = {field.name: getattr(module, field.name, None) for field in dataclass_fields(Family)}
    return Family(**{name: one for name, one in offered.items() if one is not None})


def architecture(source: str) -> Architecture:
    """Returns the model that `source` names: a directory, a config.json, a .gguf file, or a published name.

    Reads no weights and needs no tokenizer. Raises UserError for anything else.
    """
    path = Path(source)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file() and path.suffix == ".json":
        return Architecture(_directory_name(path.parent), Fields(path, read_json(path)))
    if path.exists() or path.suffix in {".json", ".gguf"}:
        return load(path)
    name = published.resolve(source)
    fields = Fields(Path(name), published.config(name))
    return Architecture(name, fields, published.max_tokens(name))


def computed_families() -> tuple[str, ...]:
    """Lists each model_type that the executors compute in some format, judged by its first published model,
    or by a small one where none is published."""
    first: dict[str, dict[str, object]] = {}
    for name in published.names():
        config = published.config(name)
        first.setdefault(FAMILIES[str(config["model_type"])], config)
    small = {module: {**SMALL, "model_type": name} for name, module in FAMILIES.items()}
    computed = {module for module in small if _is_computed(first.get(module, small[module]))}
    return tuple(model_type for model_type, module in FAMILIES.items() if module in computed)


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
"""The configuration of a small model, for any family that has the usual keys."""


def _is_computed(config: dict[str, object]) -> bool:
    model = Architecture("", Fields(Path("config.json"), config))
    return any(model.graph(fmt).refusal() is None for fmt in FORMATS.values())


def _quantised(plain: SafetensorsCheckpoint, quantization: Quantization) -> Checkpoint:
    if quantization.method == MXFP4:
        return Mxfp4Checkpoint(plain, quantization)
    by_words = quantization.method in (GPTQ, AWQ)
    return (GptqCheckpoint if by_words else QuantizedCheckpoint)(plain, quantization)


def _refuse_code(fields: Fields) -> None:
    """Raises UserError for a model that brings its own code: that code is never run, and its results are not
    those of the family of that name."""
    for key in ("auto_map", "trust_remote_code"):
        if fields.has(key):
            raise fields.error(
                key,
                "asks for code that comes with the model, which is never run; without the key it is served "
                f"as a plain {fields.text('model_type')}",
            )


def load(path: Path) -> Model:
    """Loads a Hugging Face directory, a .gguf file, or a directory with one GGUF model's files.

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
    gguf = open_gguf(path)
    return Model(gguf.path, stem_of(path), config_fields(gguf), gguf)


def _load_directory(path: Path) -> Model:
    check_links(path)
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if not same_model(files):
            raise UserError(
                f"{path}: holds neither a config.json nor exactly one .gguf file ({len(files)} found), "
                "or all the files of one, NAME-00001-of-00002.gguf and so on"
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
    """Refuses pickles by name where there are no safetensors; beside safetensors they are ignored."""
    if (path / INDEX).is_file() or any(path.glob("*.safetensors")):
        return
    for file in sorted(path.iterdir()):
        if file.suffix in PICKLES and file.name != "training_args.bin":
            raise _refused_file(file)


def _directory_name(path: Path) -> str:
    """Returns the directory's name; org/name in the hub's cache (models--org--name/snapshots/hash)."""
    path = path.resolve()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name
