"""The LoRA adapters of an LLM, by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from corepipe.engine.loop.driver import Driver
from corepipe.engine.lora import AdapterRef, LoadAdapter, UnloadAdapter, read_lora_module
from corepipe.errors import UserError, shown


class NamedAdapters:
    """Adapters that are loaded into an engine of this process.  modules: `EngineConfig.lora_modules`."""

    def __init__(self, driver: Driver, modules: Iterable[str] = ()) -> None:
        self._driver = driver
        self._named: dict[str, AdapterRef] = {}
        for module in map(read_lora_module, modules):
            self.load(module.name, module.path)

    def load(self, name: str, path: str | Path) -> None:
        """Loads the adapter in a directory; one that has the name is replaced.  Raises UserError."""
        report = self._driver.load_adapter(LoadAdapter(name, str(path), replaces=self._alone(name)))
        if report.error:
            raise UserError(f"{name}: {report.error}", "lora_modules")
        self._named[name] = AdapterRef(name, report.digest)

    def unload(self, name: str) -> None:
        """Frees an adapter.  Raises UserError for a name that is not loaded."""
        self.find(name)
        alone = self._alone(name)
        del self._named[name]
        if alone:
            self._driver.handle(UnloadAdapter(alone))
            self._driver.adapter_reports()

    def find(self, name: str | None) -> AdapterRef | None:
        """Returns the adapter of a name; None for None.  Raises UserError for one that is not loaded."""
        if name is None:
            return None
        if name not in self._named:
            loaded = f"there are {', '.join(self._named)}" if self._named else "none is loaded"
            raise UserError(f"adapter {shown(name)} is not loaded; {loaded}", "adapter")
        return self._named[name]

    def _alone(self, name: str) -> str:
        """Returns the content of a name that no other name has; empty if there is none."""
        digest = self._named[name].digest if name in self._named else ""
        return "" if sum(one.digest == digest for one in self._named.values()) > 1 else digest
