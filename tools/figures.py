"""Figures of the code: lines, folders, functions, circles of imports, modules that a completion passes.

    python tools/figures.py             prints all of them
    python tools/figures.py check       exit code 1 where one is over its limit (part of `make lint`)
    python tools/figures.py completion  serves one completion, and prints the modules that ran

A limit of lines may be raised by a decision in docs/decisions alone.
"""

from __future__ import annotations

import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "corepipe"
TINY = ROOT / "tests" / "data" / "tiny" / "smollm2"

LIMITS = {
    "package lines": 102_500,
    "test lines": 90_500,
    "files in a folder": 25,
    "file lines": 400,
    "function lines": 60,
    "circles": 0,
}
"""The most that each figure may be.  Folders of families are exempt: they have a file for each."""

REPEATS = 5
"""Completions; what runs during each of them counts, so that periodic work does not."""

NAMES = {
    "flag --max-num-seqs": r"max[_-]num[_-]seqs",
    "sampling parameter min_p": r"\bmin_p\b",
    "signature of the Op RMSNorm": r"def rms_norm\(|\"rms_norm\"",
}
"""Facts that should be stated in few places, and the pattern that finds each."""

RECORDER = """
import atexit, json, os, sys, threading, time
seen = {}
def called(frame, event, argument):
    name = frame.f_code.co_filename
    if "/corepipe/" in name and frame.f_code.co_name != "<module>":
        seen.setdefault(name, set()).add(int(time.time() * 20))
def dump():
    while not os.path.exists(os.environ["FIGURES_END"]):
        time.sleep(0.05)
    with open(os.environ["FIGURES_END"] + f".{os.getpid()}", "w") as file:
        json.dump({name: sorted(times) for name, times in list(seen.items())}, file)
threading.Thread(target=dump, daemon=True).start()
threading.setprofile(called)
sys.setprofile(called)
"""
"""A `sitecustomize` that notes in which twentieths of a second the functions of each module were called."""


def modules() -> dict[str, Path]:
    """The package's modules by their dotted names."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a module imports, for types alone as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module


def circles(trees: dict[str, ast.Module], known: dict[str, Path]) -> list[str]:
    """One circle of imports, where there is any."""
    graph = {name: set(imported(tree, known)) - {name} for name, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def functions(trees: dict[str, ast.Module]) -> list[tuple[int, str]]:
    """Lines of every function, without its decorators and docstring, and where it is."""
    found = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                found.append((body[-1].end_lineno - body[0].lineno + 2, f"{module}.{node.name}"))
    return found


def lines_of(folder: Path) -> int:
    return sum(
        len(path.read_text().splitlines()) for path in folder.rglob("*.py*") if path.suffix in {".py", ".pyi"}
    )


def figures() -> dict[str, tuple[int, str]]:
    """Each figure with a limit, and the place where it is reached."""
    known = modules()
    trees = {name: ast.parse(path.read_text()) for name, path in known.items()}
    folders = {
        path.parent: len([*path.parent.glob("*.py")]) - 1
        for path in PACKAGE.rglob("__init__.py")
        if path.parent.name != "families"
    }
    fullest = max(folders, key=lambda folder: folders[folder])
    longest = max(functions(trees))
    files = {path: len(path.read_text().splitlines()) for path in known.values()}
    long_file = max(files, key=lambda path: files[path])
    found = circles(trees, known)
    return {
        "package lines": (lines_of(PACKAGE), f"{len(known)} files in {len(folders) + 1} folders"),
        "test lines": (lines_of(ROOT / "tests"), ""),
        "files in a folder": (folders[fullest], str(fullest.relative_to(ROOT))),
        "file lines": (files[long_file], str(long_file.relative_to(ROOT))),
        "function lines": (
            longest[0],
            f"{longest[1]}; median {statistics.median(lines for lines, _ in functions(trees))}",
        ),
        "circles": (len(found), "".join(found)),
    }


def places(pattern: str) -> list[str]:
    """The files of the package and of the chart that match a pattern."""
    paths = [path for path in (*PACKAGE.rglob("*"), *(ROOT / "helm").rglob("*")) if path.is_file()]
    sources = [
        path for path in paths if path.suffix in {".py", ".pyi", ".cpp", ".h", ".json", ".yaml", ".tpl"}
    ]
    return [str(path.relative_to(ROOT)) for path in sources if re.search(pattern, path.read_text())]


def completion() -> set[str]:
    """Modules of which a function runs, in the server or its engine, while one completion is answered."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(RECORDER)
        end = Path(folder) / "end"
        environment = os.environ | {"PYTHONPATH": folder, "FIGURES_END": str(end)}
        command = [sys.executable, "-m", "corepipe", "serve", str(TINY), "--port", "0"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            url = next(
                found[0] for line in server.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line))
            )
            while not ask(f"{url}/health", None):
                time.sleep(0.1)
            body = {"prompt": "Once", "max_tokens": 8}
            assert ask(f"{url}/v1/completions", body)  # the first one imports modules
            windows = []
            for _ in range(REPEATS):
                time.sleep(0.5)
                began = time.time()
                ask(f"{url}/v1/completions", body)
                windows.append({*range(int(began * 20), int(time.time() * 20) + 1)})
            end.touch()
            time.sleep(2)
            server.terminate()
        notes = [json.loads(path.read_text()) for path in Path(folder).glob("end.*")]
    return {
        name for note in notes for name, times in note.items() if all(window & {*times} for window in windows)
    }


def ask(url: str, body: dict[str, object] | None) -> bool:
    """Sends a GET, or a POST of a body; true if the server answers with 200."""
    try:
        answer = httpx.get(url) if body is None else httpx.post(url, json=body, timeout=60)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK


def main() -> int:
    if sys.argv[1:] == ["completion"]:
        ran = sorted(str(Path(name).relative_to(ROOT)) for name in completion())
        print(*ran, f"a completion passes {len(ran)} modules", sep="\n")
        return 0
    over = False
    for name, (figure, where) in figures().items():
        over |= figure > LIMITS[name]
        print(f"{name:20}{figure:8,}  at most {LIMITS[name]:,}{'  OVER' * (figure > LIMITS[name])}  {where}")
    if sys.argv[1:] != ["check"]:
        for name, pattern in NAMES.items():
            print(f"{name}: in {len(places(pattern))} files: {', '.join(places(pattern))}")
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
