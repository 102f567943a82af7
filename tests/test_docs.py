"""The documents say what is there, all of it, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import functools
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import corepipe
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Ready
from corepipe.errors import UserError
from corepipe.library.answers import RequestOutput
from corepipe.library.llm import LLM, SamplingParams
from corepipe.models import hub
from corepipe.neuron.axes import columns, vocabulary
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.formats import FORMATS
from corepipe.serving.api.cassettes.server_cassettes import CassetteMetrics
from corepipe.serving.api.http.inject import InjectedFaults
from corepipe.serving.api.http.limits import ConnectionLimit, ConnectionMetrics
from corepipe.serving.api.routes.route import HttpMetrics
from corepipe.serving.api.table import ROUTES
from corepipe.serving.faults import KINDS, SECONDS
from corepipe.serving.supervision.engine_pool import EnginePool
from corepipe.serving.supervision.pool import PoolLimits
from corepipe.serving.telemetry.by_model import joint_registry
from corepipe.serving.telemetry.metrics import Metrics
from corepipe.serving.telemetry.neuron_metrics import NeuronMetrics
from corepipe.serving.telemetry.observer import Observer
from corepipe.serving.telemetry.pool_metrics import PoolMetrics
from tests import cli_page
from tests.cli.test_main import COMMANDS, named
from tests.servers import Served, default_model, served

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*TOP, *sorted(DOCS.rglob("*.md"))]
HIDDEN = {".venv", ".venv-parity", ".venv-clients", "build", "dist", ".pytest_cache"}
EVERY_PAGE = [page for page in sorted(ROOT.rglob("*.md")) if HIDDEN.isdisjoint(page.relative_to(ROOT).parts)]
ARCHITECTURE = (DOCS / "architecture.md").read_text()
PLUGIN = (ROOT / "corepipe" / "pytest.py").read_text()
SOURCES = {".py", ".cpp", ".h", ".inl"}
OURS = re.compile(r"(?:vllm:|corepipe_)\w+")


def rows(text: str) -> list[list[str]]:
    """Cells of every table row, heads and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    kept = [line for line, after in zip(lines, [*lines[1:], ""], strict=True) if "---" not in line + after]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in kept]


def tables(text: str) -> Iterator[list[tuple[int, str]]]:
    """Lines of every table, with their numbers; what is in code blocks is left out."""
    outside = re.sub(
        r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    found: list[tuple[int, str]] = []
    for number, line in enumerate([*outside.splitlines(), ""], 1):
        if line.lstrip().startswith("|"):
            found.append((number, line.strip()))
        elif found:
            yield found
            found = []


def width(line: str) -> int:
    """Cells of a row; a bar is one of the text where a backslash says so, in code too."""
    return len(re.split(r"(?<!\\)\|", line.removeprefix("|").removesuffix("|")))


def section(text: str, title: str) -> str:
    """The text under a heading, up to the next heading of the same depth or above."""
    depth = title.index(" ")
    body = text.split(f"{title}\n", 1)[1]
    return re.split(rf"^#{{1,{depth}}} ", body, maxsplit=1, flags=re.MULTILINE)[0]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def examples(page: Path) -> list[str]:
    """The page's Python examples."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run(example: str, page: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names that an example defines, beside those that were `given`."""
    defined = {} if given is None else given
    exec(compile(example, page, "exec"), defined)
    return defined


def test_the_newest_version_of_the_changelog_is_this_one() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert newest[1] == corepipe.__version__ == project["version"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = [
        path for path in quoted(text) if re.fullmatch(r"(corepipe|tests|docs|benchmarks)/[\w./-]+", path)
    ]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_has_a_head_and_as_many_cells_in_each_row(page: Path) -> None:
    broken = []
    for (number, head), *rest in tables(page.read_text()):
        rule = rest[0][1] if rest else ""
        if not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", rule):
            broken.append(f"line {number}: no rule under the head")
        broken += [f"line {at}: {width(row)} cells" for at, row in rest if width(row) != width(head)]
    assert broken == []


def test_every_folder_is_in_the_architecture_with_the_first_line_of_its_package() -> None:
    package = ROOT / "corepipe"
    folders = {
        str(path.parent.relative_to(package))
        for path in package.rglob("*")
        if path.suffix in SOURCES and path.parent != package
    }
    told = {quoted(name)[0]: what for name, what in rows(section(ARCHITECTURE, "## The rooms"))}
    assert sorted(told) == sorted(folders)
    for folder, what in told.items():
        if (init := package / folder / "__init__.py").exists():
            assert init.read_text().startswith(f'"""{what}.')


def test_the_way_of_a_request_is_read_in_at_most_twelve_modules() -> None:
    text = section(ARCHITECTURE, "## Read these three first")
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", text.split("Then follow a request")[1], re.MULTILINE)
    assert 6 < len(listed) <= 12
    assert [name for name in listed if not (ROOT / "corepipe" / name).is_file()] == []


def test_what_the_life_of_a_request_names_exists() -> None:
    text = section(ARCHITECTURE, "## The life of a request")
    sources = "\n".join(path.read_text() for path in (ROOT / "corepipe").rglob("*.py"))
    defined = set(re.findall(r"(?:class|def) (\w+)", sources))
    named = [re.split(r"[./]", name) for name in quoted(text)]
    assert len(named) > 20
    assert [parts for parts in named if parts[-1] not in defined] == []


def test_the_direction_of_imports_is_the_one_that_is_checked() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [layer.replace("corepipe.", "").replace(" | ", ", ") for layer in contract["layers"]]
    assert f"`{' -> '.join(layers)}`" in ARCHITECTURE


def invariants() -> Iterator[tuple[str, str]]:
    return iter(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "invariants.md").read_text()))


@functools.cache
def defined_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, kinds))


@pytest.mark.parametrize(("path", "name"), sorted(set(invariants())))
def test_the_test_of_an_invariant_exists(path: str, name: str) -> None:
    assert name in defined_in(path)


def test_invariants_are_numbered_and_each_has_a_test() -> None:
    parts = re.split(r"^(\d+)\. ", (DOCS / "invariants.md").read_text(), flags=re.MULTILINE)[1:]
    numbers, texts = parts[::2], parts[1::2]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert all("`tests/" in text for text in texts)


def flags(name: str) -> dict[str, tuple[str, str]]:
    """Names of a command's parameters -> default and help, as the page shows them."""
    return cli_page.flags(named()[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_is_documented_as_it_is(name: str) -> None:
    table = rows(section((DOCS / "cli.md").read_text(), f"## corepipe {name}"))
    assert {flag: (default, what) for flag, default, what in table} == flags(name)


def test_the_tables_of_flags_are_written_from_the_commands() -> None:
    text = cli_page.PAGE.read_text()
    assert cli_page.page(text) == text


def test_no_other_command_is_documented() -> None:
    documented = re.findall(r"^## corepipe (.+)", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert sorted(documented) == COMMANDS


@functools.cache
def all_flags() -> frozenset[str]:
    """All flags of the commands, the benchmarks and the pytest plugin."""
    benchmarks = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    others = re.findall(r'"(--[a-z-]+)"', benchmarks + PLUGIN)
    return frozenset(
        ["--help", *others, *(flag for name in COMMANDS for names in flags(name) for flag in quoted(names))]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_in_the_text_exist(page: Path) -> None:
    written = re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text())
    assert [flag for flag in written if flag not in all_flags()] == []


def test_environment_variables_are_those_that_are_read() -> None:
    sources = [path for path in (ROOT / "corepipe").rglob("*") if path.suffix in SOURCES]
    read = {name for path in sources for name in re.findall(r'"(COREPIPE_[A-Z_]+)"', path.read_text())}
    documented = {row[0].strip("`") for row in rows((DOCS / "cli.md").read_text()) if "COREPIPE_" in row[0]}
    assert documented == read


class NoEngine:
    stats = ()
    restarts: ClassVar[dict[str, int]] = {}
    refusals: ClassVar[dict[tuple[str, str], int]] = {}


def families() -> dict[str, tuple[str, str]]:
    return asyncio.run(collected())


async def collected() -> dict[str, tuple[str, str]]:
    """In an event loop, as when they are scraped."""
    metrics = Metrics(NoEngine(), "model", EngineConfig(model="model"), Observer(EngineConfig(model="model")))
    registry = joint_registry({"model": metrics.collectors})
    HttpMetrics(registry, ROUTES)
    registry.register(ConnectionMetrics(ConnectionLimit(1)))
    InjectedFaults(registry)
    registry.register(CassetteMetrics())
    registry.register(PoolMetrics(EnginePool(PoolLimits(1, 0, 0), None)))
    metrics.set_ready(Ready({}, 1, 1, 1, "", 0.0, os.getpid()))
    neuron = NeuronMetrics("model", EngineConfig(model="model"), Observer(EngineConfig(model="model")))
    found = [*registry.collect(), *neuron.collect()]
    return {f.name: (f.type, f.documentation) for f in found}


def test_every_metric_is_documented_as_it_is() -> None:
    table = rows((DOCS / "metrics.md").read_text())
    assert {name.strip("`"): (kind, what) for name, kind, what in table} == families()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_in_the_text_exist(page: Path) -> None:
    named = [name for text in quoted(page.read_text()) for name in OURS.findall(text)]
    known = {*families(), *OURS.findall(PLUGIN)}
    assert [name for name in named if name not in known and name.removesuffix("_total") not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_routes_in_the_text_exist(page: Path) -> None:
    named = re.findall(r"(?:GET|POST) (/[\w/{}.-]+)", page.read_text())
    assert sorted(set(named) - {one.path for one in ROUTES}) == []


def test_every_fault_is_documented_as_it_is() -> None:
    table = rows(section((DOCS / "serving.md").read_text(), "## Faults on request"))
    expected = [
        [f"`{kind}`", what, f"{SECONDS[kind]:g} s" if kind in SECONDS else ""] for kind, what in KINDS.items()
    ]
    assert table == expected


def test_which_chip_has_which_format() -> None:
    text = (DOCS / "formats.md").read_text()
    chips = {i.chip.name: i for i in INSTANCES}
    expected = [
        [
            chip,
            ", ".join(sorted({i.family for i in INSTANCES if i.chip.name == chip})),
            *(instance.support(fmt).value for fmt in FORMATS.values()),
        ]
        for chip, instance in chips.items()
    ]
    assert rows(section(text, "## Formats of the chips")) == expected


def test_what_a_format_is_made_of() -> None:
    table = rows((DOCS / "formats.md").read_text().split("## ")[0])
    expected = [
        [f"`{f.name}`", f.weights.value, f.activations.value, f.compute.value, f.compute.value]
        for f in FORMATS.values()
    ]
    assert table == expected


def test_units_of_splits() -> None:
    text = " ".join((DOCS / "placement.md").read_text().split())
    units = columns("ffn", 4096).unit, vocabulary(4096).unit
    assert (
        "Feed-forward columns are cut in units of {} and the vocabulary in units of {}".format(*units) in text
    )


def default_of(value: object) -> str:
    return "" if value is ... else f"`{value}`"


def test_every_option_of_the_python_interface_is_documented() -> None:
    text = (DOCS / "python.md").read_text()
    options = {name: field.get_default() for name, field in EngineConfig.model_fields.items()}
    shown = {name: "" if name == "model" else default_of(value) for name, value in options.items()}
    table = rows(section(text, "## LLM(model, **options)").split("Options are")[1])
    assert {name.strip("`"): default for name, default, _ in table} == shown

    defaults = {name: getattr(SamplingParams(), name) for name in SamplingParams.__struct_fields__}
    table = rows(section(text, "## SamplingParams"))
    assert {name.strip("`"): default for name, default, _ in table} == {
        name: default_of(value) for name, value in defaults.items()
    }
    table = rows(section(text, "## RequestOutput"))
    assert [name.strip("`") for name, _ in table] == list(RequestOutput.__dataclass_fields__)


def test_every_method_of_llm_is_documented() -> None:
    table = rows(
        section((DOCS / "python.md").read_text(), "## LLM(model, **options)").split("Options are")[0]
    )
    public = {name for name in vars(LLM) if not name.startswith("_")} - {"of"}
    assert {call.strip("`").partition("(")[0] for call, _ in table} == public


def test_the_example_of_the_python_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    default_model()
    run(examples(DOCS / "python.md")[0], "docs/python.md")
    assert "Paris" in capsys.readouterr().out


def test_the_example_of_the_tools_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    default_model()
    (example,) = examples(DOCS / "tools.md")
    answer = run(example, "docs/tools.md")["answer"]
    assert [json.loads(call.arguments) for call in answer.tool_calls] == [{"city": "Paris"}]
    assert capsys.readouterr().out in example


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    default_model()
    with served() as running:
        yield running


def test_the_example_of_the_readme_runs(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (example, *_) = examples(ROOT / "README.md")
    run(example.replace("http://127.0.0.1:8000", server.url), "README.md")
    assert "Paris" in capsys.readouterr().out


def test_the_examples_of_structured_output_run(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    page = "docs/structured-output.md"
    schema, regex, library, tags = examples(ROOT / page)
    told = run(schema.replace("http://127.0.0.1:8000", server.url), page)
    parsed = told["answer"].choices[0].message.parsed
    assert isinstance(parsed, told["Person"])
    assert capsys.readouterr().out == f"{parsed}\n"
    told = run(regex, page, told)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", told["answer"].choices[0].message.content)
    (choice,) = run(tags, page, told)["answer"].choices
    assert choice.finish_reason == "length" or choice.message.content.count("<st") == len(
        re.findall(r"<step>.*?</step>", choice.message.content, re.DOTALL)
    )
    run(library, page)
    assert capsys.readouterr().out.strip() in ("positive", "negative")


def test_the_example_of_the_embeddings_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of other packages than openai are rows of `make clients`."""
    try:
        hub.resolve("all-minilm-l6-v2")
    except UserError as error:
        pytest.skip(f"the model cannot be had: {error.message}")
    (example,) = examples(DOCS / "embeddings.md")
    with served("all-minilm-l6-v2") as running:
        run(example.replace("http://127.0.0.1:8000", running.url), "docs/embeddings.md")
    near, far = map(float, capsys.readouterr().out.split())
    assert near > far + 0.1
