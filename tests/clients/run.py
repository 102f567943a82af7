"""Tries real clients against a real server of a model that fits them, and prints the result of each row.

    python -m tests.clients.run                       # all of them
    python -m tests.clients.run openai litellm        # some
    python -m tests.clients.run agents                # the coding agents
    python -m tests.clients.run --rows tools --json   # rows with a word in their titles, for programs
    python -m tests.clients.run --url http://127.0.0.1:8000   # a server that runs already

A client is a file of this directory, and runs in an environment of its own, since clients pin each other's
parts: tests/clients/requirements/NAME.txt, or node/package-lock.json.  `make clients` sets them up;
`make clients-agents` sets up the agents, whose programs have 2 GB (requirements/agents).  Exits with 1 if a
row failed that is not explained.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import httpx

from corepipe.models import hub
from tests.clients.agent_tasks import AGENTS
from tests.clients.rows import EXPLAINED, FAILED, PASSED, RowResult
from tests.clients.scripted import WEATHER, write_scripted
from tests.servers import served

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / ".venv-clients"
NODE_MODULES = ROOT / "build" / "clients"
LIMIT_SECONDS = 1800
"""The time limit for a client that hangs."""
CONTEXT = 4096
NOT_RUN = "not run"
OUTCOMES = (PASSED, EXPLAINED, FAILED, NOT_RUN)

RESPONSES, MESSAGES = "responses", "messages"
AGENT = "agent"
"""The task of clients that start a server of their own."""
MODELS = {
    "generate": (hub.DEFAULT_MODEL, "--max-model-len", CONTEXT),
    "embed": ("all-minilm-l6-v2",),
}
"""The models that clients are tried on, by the task that they need."""
SCRIPTED = "scripted"
"""The model beside the first, which makes the calls of a script where a small model would answer in words."""


@dataclass(frozen=True)
class Client:
    """A client: its name, its file, and what it needs to run.

    task: of the model that it uses.  shares: another client's environment, if it runs in that.  form: the API
    that it uses, if it has several.
    """

    name: str
    package: str
    file: str
    task: str = "generate"
    shares: str = ""
    form: str = ""

    @property
    def of_node(self) -> bool:
        return self.file.endswith(".mjs")

    @property
    def environment(self) -> str:
        return self.shares or self.name

    def version(self) -> str:
        """The version of the package that is pinned."""
        pins = HERE / "requirements" / ("agents" if self.task == AGENT else "")
        lock = (HERE / "node" if self.of_node else pins) / "package-lock.json"
        if (self.of_node or self.task == AGENT) and (
            pinned := json.loads(lock.read_text())["packages"].get(f"node_modules/{self.package}")
        ):
            return str(pinned["version"])
        lines = (pins / f"{self.environment}.txt").read_text().splitlines()
        return next(line.split("==")[1] for line in lines if line.startswith(f"{self.package}=="))

    def command(self, heard: Path | None = None) -> list[str]:
        """Returns the command that runs the client.  Raises LookupError that names what is missing.

        heard: the file for the answers that a client in Python receives (`tests.clients.answer_log`).
        """
        if self.task == AGENT:
            program = next(one.program for one in AGENTS if one.name == self.name)
            if not program.exists():
                raise LookupError(f"{program.relative_to(ROOT)} is not there: make clients-agents")
            return [sys.executable, "-m", "tests.clients.agents", self.name]
        if self.of_node:
            if shutil.which("node") is None:
                raise LookupError("no node")
            if not (NODE_MODULES / "node_modules" / self.package).exists():
                raise LookupError(f"{self.package} is not installed: make clients")
            for file in (HERE / "node").glob("*.mjs"):  # modules are looked for beside the file
                shutil.copy(file, NODE_MODULES)
            return ["node", str(NODE_MODULES / self.file)]
        python = ENVIRONMENTS / self.environment / "bin" / "python"
        if not python.exists():
            raise LookupError(f"{python.parent.parent.relative_to(ROOT)} is not there: make clients")
        listening = [] if heard is None else ["tests.clients.answer_log", str(heard)]
        return [str(python), "-m", *listening, f"tests.clients.{Path(self.file).stem}"]


CLIENTS = (
    Client("openai", "openai", "openai_python.py"),
    Client("openai-responses", "openai", "openai_responses.py", shares="openai"),
    Client("openai-batches", "openai", "openai_batches.py", shares="openai"),
    Client("anthropic", "anthropic", "anthropic_python.py"),
    Client("langchain", "langchain-openai", "langchain_openai.py"),
    Client(
        "langchain-responses", "langchain-openai", "langchain_openai.py", shares="langchain", form=RESPONSES
    ),
    Client("langchain-anthropic", "langchain-anthropic", "langchain_anthropic.py", shares="langchain"),
    Client("pydantic_ai", "pydantic-ai-slim", "pydantic_ai_agents.py"),
    *(
        Client(
            f"pydantic_ai-{form}",
            "pydantic-ai-slim",
            "pydantic_ai_agents.py",
            shares="pydantic_ai",
            form=form,
        )
        for form in (RESPONSES, MESSAGES)
    ),
    Client("openai_agents", "openai-agents", "openai_agents.py"),
    Client("instructor", "instructor", "instructor_openai.py"),
    Client("litellm", "litellm", "litellm_openai.py"),
    Client("litellm_proxy", "litellm", "litellm_proxy.py"),
    Client("llama_index", "llama-index-llms-openai-like", "llama_index_like.py"),
    Client("npm-openai", "openai", "openai.mjs"),
    Client("npm-ai", "ai", "ai.mjs"),
    Client("openai-embeddings", "openai", "openai_embeddings.py", "embed", shares="openai"),
    Client(
        "langchain-embeddings", "langchain-openai", "langchain_embeddings.py", "embed", shares="langchain"
    ),
    Client("cohere", "cohere", "cohere_rerank.py", "embed"),
    Client("triton", "tritonclient", "triton_http.py", "embed"),
    *(Client(one.name, one.package, "agents.py", AGENT) for one in AGENTS),
)


@dataclass(frozen=True)
class Tried:
    """The results of a client's rows."""

    client: Client
    results: list[RowResult]

    def counts(self) -> Counter[str]:
        return Counter(result.outcome for result in self.results)


def tried(client: Client, url: str, chosen: str, heard: Path | None = None) -> Tried:
    """Runs a client's rows, and prints each result on stderr as it ends; heard: see `Client.command`."""
    try:
        command, environment = client.command(heard), _environment(client, url, chosen)
    except LookupError as missing:
        return Tried(client, [RowResult("all rows", NOT_RUN, str(missing))])
    results = []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        stop = Timer(LIMIT_SECONDS, process.kill)
        stop.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"row":'):
                results.append(RowResult(**json.loads(line)))
                one = results[-1]
                print(client.name, one.row, one.outcome, one.why, sep=": ", file=sys.stderr, flush=True)
        stop.cancel()
    if process.returncode or not (results or chosen):
        why = f"ended with {process.returncode} after {len(results)} rows"
        results.append(RowResult("all rows", FAILED, why))
    return Tried(client, results)


def _environment(client: Client, url: str, chosen: str) -> dict[str, str]:
    """Returns a client's environment: no proxy, no key, no telemetry, no settings file of the project.

    Raises LookupError if the server has no model for the client's task.
    """
    if client.task == AGENT:
        return dict(os.environ)
    listed = httpx.get(f"{url}/v1/models").json()["data"]
    model = next((one["id"] for one in listed if one["task"] == client.task), None)
    if model is None:
        raise LookupError(f"no model to {client.task} is served at {url}")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "ANTHROPIC_", "COREPIPE_"))
    }
    return {
        **kept,
        "CLIENTS_URL": f"{url}/v1",
        "CLIENTS_MODEL": model,
        "CLIENTS_SCRIPTED": SCRIPTED if any(one["id"] == SCRIPTED for one in listed) else "",
        "CLIENTS_ROWS": chosen,
        "CLIENTS_FORM": client.form,
        "NO_PROXY": "127.0.0.1",
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "ANONYMIZED_TELEMETRY": "false",
    }


def table(all_tried: list[Tried]) -> str:
    """Prints a line for each client, then the rows that did not pass."""
    lines = [
        "| client | version | passed | explained | failed | not run |",
        "|---|---|---|---|---|---|",
    ]
    for one in all_tried:
        counts = one.counts()
        cells = [one.client.name, one.client.version(), *(str(counts[o]) for o in OUTCOMES)]
        lines.append(f"| {' | '.join(cells)} |")
    for outcome in OUTCOMES[1:]:
        rows = [(one.client.name, r) for one in all_tried for r in one.results if r.outcome == outcome]
        if rows:
            lines += ["", f"{outcome}:", "", *(f"- {name}: {r.row}: {r.why}" for name, r in rows)]
    return "\n".join(lines)


def document(all_tried: list[Tried]) -> str:
    """Prints the same as JSON, for programs."""
    return json.dumps(
        [
            {
                "client": one.client.name,
                "version": one.client.version(),
                "rows": [asdict(r) for r in one.results],
            }
            for one in all_tried
        ],
        indent=1,
    )


def model_flags(task: str, folder: Path) -> tuple[object, ...]:
    """Returns the arguments of a server for a task; writes the scripted model into a directory."""
    if task != "generate":
        return MODELS[task]
    return (*MODELS[task], "--also", f"{SCRIPTED}={write_scripted(folder / SCRIPTED, WEATHER)}")


@contextmanager
def _serving(task: str) -> Iterator[str]:
    """Starts the server for a task; yields its URL, or nothing for agents."""
    if task == AGENT:
        yield ""
        return
    with TemporaryDirectory() as folder, served(*model_flags(task, Path(folder)), anew=True) as server:
        yield server.url


def _is_asked_for(client: Client, names: list[str]) -> bool:
    return not names or client.name in names or (client.task == AGENT and "agents" in names)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "clients", nargs="*", choices=[[], "agents", *(c.name for c in CLIENTS)], help="default: all of them"
    )
    parser.add_argument("--rows", default="", help="only those that have this in their titles")
    parser.add_argument("--url", help="a server that is there, instead of one that is started")
    parser.add_argument("--json", action="store_true", help="a document for programs, instead of the table")
    asked = parser.parse_args()
    chosen = [client for client in CLIENTS if _is_asked_for(client, asked.clients)]
    all_tried = []
    for task in (*MODELS, AGENT):
        asking = [client for client in chosen if client.task == task]
        if asking:
            with nullcontext(asked.url) if asked.url else _serving(task) as url:
                all_tried += [tried(client, url, asked.rows) for client in asking]
    print(document(all_tried) if asked.json else table(all_tried))
    return int(any(r.outcome == FAILED for one in all_tried for r in one.results))


if __name__ == "__main__":
    sys.exit(main())
