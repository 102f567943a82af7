"""The models of directories: how each is made into a service when a request names it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from corepipe.cli.start.shares import weights_size_of
from corepipe.cli.start.starting import ResolvedModel
from corepipe.cli.start.tokenizers import tokenizer_of
from corepipe.engine.assembly.assembly import default_kv_bytes
from corepipe.engine.assembly.host_limits import host_memory
from corepipe.engine.config import EngineConfig
from corepipe.models import registry
from corepipe.models.directory import FoundModel, ModelsDirectories
from corepipe.serving.api.answering.on_demand import Kept
from corepipe.serving.api.answering.service import Service
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.serving.supervision.supervisor import ProcessClient, SpareProcess
from corepipe.version import __version__


def room_beside(fixed: Sequence[ResolvedModel]) -> int:
    """Returns the bytes of memory that the models of the command line leave."""
    return max(0, host_memory() - sum(weights_size_of(one.path, one.resolved) for one in fixed))


class DirectoryModels:
    """The models of `--models-dir`, each with the settings of the command line: a `ModelSource`.

    All models share the spare process from which the next engine is made.  Of the memory for KV caches each
    of `--max-models` has its part.
    """

    def __init__(self, engine: EngineConfig, server: ServerConfig) -> None:
        """Raises UserError for what is no directory."""
        self._directories = ModelsDirectories(server.models_dirs, engine.task)
        self._engine = engine.without_adapters()  # which are made for one model
        self._server = server
        self._spare = SpareProcess()
        self._told: dict[str, str] = {}

    def prepare(self) -> None:
        """Starts the process of the first engine."""
        with suppress(EngineError):  # it is made when it is needed; an error is reported then
            self._spare.prepare()

    def look(self) -> Mapping[str, FoundModel]:
        """Returns the models; logs once why others of the directories are none."""
        found = self._directories.look()
        refused = dict(self._directories.refused)
        for name in refused.items() - self._told.items():
            _log().warning("--models-dir: %s is not served: %s", *name)
        self._told = refused
        return found

    def measure(self, found: FoundModel) -> int:
        """Returns the bytes of weights, and of the KV cache when that is full."""
        config = self._config(found)
        return weights_size_of(found.path, config) + (config.kv_cache_bytes or 0)

    def make(self, found: FoundModel, kept: Kept | None) -> Service:
        """Reads the tokenizer, and makes the client of an engine."""
        model = registry.load(found.path)
        tokenizer = tokenizer_of(found.path, model, self._server.chat_template)
        engine = self._engine.model_copy(update={"model": str(found.path)})
        server = self._server.model_copy(update={"served_model_names": (found.name,)})
        client = ProcessClient(
            self._config(found),
            queue_seconds=server.max_queue_seconds,
            called=f"the engine of {found.name}",
            shared=self._spare,
        )
        task = model.task(engine.task)
        if kept is None:
            return Service(client, tokenizer, engine, server, __version__, task)
        return Service(kept.client, tokenizer, engine, server, __version__, task, kept.observer)

    def close(self) -> None:
        """Ends the spare process."""
        self._spare.close()

    def _config(self, found: FoundModel) -> EngineConfig:
        """Returns the configuration of a model's engine."""
        config = self._engine.model_copy(update={"model": str(found.path)})
        room = config.kv_cache_bytes or default_kv_bytes(config) // self._server.max_models
        return config.model_copy(update={"kv_cache_bytes": room})


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
