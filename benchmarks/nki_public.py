"""Public NKI kernels, unmodified, from a checkout: which run, which equal their references, what others want.

    python benchmarks/nki_public.py ../AccelOpt            NKIBench's 14 baselines, with their own references
    python benchmarks/nki_public.py ../nki-samples         tutorials; references are in nki_cases.py
    python benchmarks/nki_public.py ../nki-library --apis  read only: which names of which files are there

Each kernel runs in a process of its own with a limit of time and memory, so that one that fails ends nothing.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from nki_cases import CASES, Array, Case

from corepipe import nki
from corepipe.nki import Result
from corepipe.nki.dialects.kernels import Kernel

DIALECTS = ("neuronxcc.nki", "nki")
ABSENT = ("torch", "torch.nn", "torch.nn.functional", "scipy", "scipy.special")
"""Modules that files import for their own tests, and that stand-ins replace where they are not installed."""
GB = 1 << 30


@dataclass(frozen=True)
class Job:
    """A kernel of a file; `reference`: the file with its inputs and result, or the number of a case."""

    file: str
    entry: str
    reference: str | int

    @property
    def name(self) -> str:
        return f"{Path(self.file).stem}:{self.entry}"


@dataclass
class Outcome:
    """The result of a job.

    error: the largest difference, as a part of the reference's largest value.  seconds: processor time here.
    without: the same if no values are computed.
    """

    name: str
    ran: bool = False
    equal: bool = False
    error: float | None = None
    latency_us: float | None = None
    seconds: float = 0.0
    without: float | None = None
    same_time: bool = True
    findings: list[str] = field(default_factory=list)
    refused: str = ""


def jobs(root: Path) -> list[Job]:
    """Returns the kernels of a checkout that have a reference."""
    if (bench := root / "NKIBench").is_dir():
        cases = json.loads((bench / "summary.json").read_text()).values()
        implementations = [i for c in cases for case in c["cases"].values() for i in case["impls"]]
        return [
            Job(str(bench / i["kernel"]), "kernel", str(bench / i["task"]))
            for i in implementations
            if (bench / i["kernel"]).exists()
        ]
    found = []
    for file in sorted(root.rglob("*.py")):
        names = functions(file)
        for number, case in enumerate(CASES):
            if str(file).endswith(case.path):
                found += [Job(str(file), entry, number) for entry in case.entries if entry in names]
    return found


def functions(file: Path) -> set[str]:
    """Returns the names of a file's functions; a published file may have errors of syntax."""
    try:
        return {n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)}
    except SyntaxError:
        return set()


def carried_out(job: Job, target: str, without_values: bool) -> Outcome:
    """Runs a job in this process."""
    outcome = Outcome(job.name)
    started = time.process_time()
    try:
        arguments, expected, case = prepared(job)
        with nki.installed():
            kernel = getattr(loaded(Path(job.file)), job.entry)
        started = time.process_time()
        if case.host and not isinstance(kernel, Kernel):
            with nki.installed():
                outcome.error = error(kernel(*arguments), expected)
        else:
            run = partial(nki.simulate, kernel, *arguments, target=target, grid=case.grid, **case.keywords)
            timed(run, expected, outcome, without_values)
        outcome.ran, outcome.equal = True, outcome.error <= case.tolerance
    except Exception as refusal:  # whatever a stranger's kernel raises is its result
        outcome.refused = f"{type(refusal).__name__}: {refusal}".splitlines()[0][:300]
        outcome.seconds = outcome.seconds or time.process_time() - started
    return outcome


def timed(run: Callable[..., Result], expected: list[Array], outcome: Outcome, without_values: bool) -> None:
    """Runs a kernel with values, and without if that is wanted."""
    started = time.process_time()
    result = run()
    outcome.seconds = time.process_time() - started
    outcome.latency_us = result.latency_us
    outcome.findings = sorted({f"{f.rule} ({f.site})" for f in result.findings})
    outcome.error = error(result.outputs, expected)
    if without_values:
        started = time.process_time()
        alone = run(values=False)
        outcome.without = time.process_time() - started
        outcome.same_time = abs(alone.latency_us - result.latency_us) <= 1e-9 * result.latency_us


def prepared(job: Job) -> tuple[list[Any], list[Any], Case]:
    """Returns the arguments, the expected results, and the case with its grid and tolerance."""
    if isinstance(job.reference, int):
        case = CASES[job.reference]
        arguments = case.inputs(np.random.default_rng(0))
        expected = case.reference(*arguments)
        return arguments, list(expected) if isinstance(expected, tuple) else [expected], case
    module = loaded(Path(job.reference))
    np.random.seed(0)  # the files draw from numpy's global state
    inputs = module.get_inputs()
    expected = module.forward(*inputs)
    references = expected if isinstance(expected, tuple) else (expected,)
    case = Case("", [], lambda _: [], lambda: None)
    return list(module.transform_to_nki_inputs(inputs)), list(references), case


def loaded(path: Path) -> ModuleType:
    """Imports a file by its path; its neighbours can be imported too."""
    sys.path.insert(0, str(path.parent))
    for name in ABSENT:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = MagicMock(__path__=[], __spec__=MagicMock(submodule_search_locations=[]))
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def error(outputs: Sequence[Array] | Array, expected: Sequence[Array]) -> float:
    """Returns the largest difference as a part of the reference's largest value; NaN counts as infinite."""
    outputs = [outputs] if isinstance(outputs, np.ndarray) else outputs
    if len(outputs) != len(expected):
        raise ValueError(f"{len(outputs)} outputs, and the reference has {len(expected)}")
    worst = 0.0
    for out, reference in zip(outputs, expected, strict=True):
        wanted = np.asarray(reference)
        found = np.asarray(out).reshape(wanted.shape)
        worst = max(worst, *(largest(a, b) for a, b in pieces(found, wanted))) / np.abs(wanted).max()
    return float(worst)


def pieces(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Cuts two arrays along their first axis, so that differences take little memory."""
    step = max(1, len(a) // 16)
    for start in range(0, len(a), step):
        yield a[start : start + step], b[start : start + step]


def largest(a: Array, b: Array) -> float:
    difference = np.abs(a.astype(np.float32) - b.astype(np.float32)).max()
    return float("inf") if np.isnan(difference) else float(difference)


def in_process(job: Job, arguments: argparse.Namespace) -> Outcome:
    """Runs a job in a process of its own."""
    flags = ["--target", arguments.target, "--memory-gb", str(arguments.memory_gb)]
    flags += ["--without-values"] if arguments.without_values else []
    command = [sys.executable, __file__, arguments.path, "--one", json.dumps(asdict(job)), *flags]
    one_core = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout, check=False, env=one_core
        )
    except subprocess.TimeoutExpired:
        return Outcome(job.name, refused=f"longer than {arguments.timeout} s", seconds=arguments.timeout)
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Outcome(job.name, refused=f"exit {done.returncode}: {last}"[:300])
    return Outcome(**json.loads(done.stdout.strip().splitlines()[-1]))


def printed(outcomes: Sequence[Outcome], without_values: bool) -> None:
    """Prints a table, and the sums."""
    width = max(len(o.name) for o in outcomes)
    print(f"{'kernel':{width}}  ran  equal    error  predicted us  seconds  without  findings or refusal")
    for o in outcomes:
        why = o.refused or "; ".join(o.findings)
        different = "" if o.same_time else " another time without values;"
        print(
            f"{o.name:{width}}  {'yes' if o.ran else 'NO ':3}  {'yes' if o.equal else 'NO ':5}"
            f"  {number(o.error, '7.1e')}  {number(o.latency_us, '12.1f')}  {o.seconds:7.1f}"
            f"  {number(o.without, '7.1f')} {different} {why}"
        )
    ran, equal = sum(o.ran for o in outcomes), sum(o.equal for o in outcomes)
    print(f"\n{len(outcomes)} kernels: {ran} ran, {equal} equal their references")
    if without_values:
        slowest = max(outcomes, key=lambda o: o.seconds)
        print(
            f"slowest: {slowest.name}, {slowest.seconds:.1f} s; without values {slowest.without or 0:.1f} s"
        )


def number(value: float | None, form: str) -> str:
    return " " * len(format(0.0, form)) if value is None else format(value, form)


def names_of(tree: ast.AST) -> dict[str, str]:
    """Returns what the names that a file imports from NKI stand for, such as nl: neuronxcc.nki.language."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if of_dialect(alias.name):
                    found[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if of_dialect(full := f"{node.module}.{alias.name}"):
                    found[alias.asname or alias.name] = full
    return found


def of_dialect(name: str) -> bool:
    return any(name == d or name.startswith(d + ".") for d in DIALECTS)


def used(file: Path) -> set[str]:
    """Returns the full names of NKI's that a file uses, by reading it."""
    try:
        tree = ast.parse(file.read_text())
    except (SyntaxError, UnicodeDecodeError):
        return set()
    known = names_of(tree)
    found = {full for full in known.values() if not is_module(full)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (full := chain(node, known)):
            found.add(full)
    # `nl.tile_size.pmax` says more than `nl.tile_size`.
    return {n for n in found if of_dialect(n) and not any(m.startswith(n + ".") for m in found)}


def chain(node: ast.expr, known: Mapping[str, str]) -> str:
    """Returns the full name of an attribute of one of the known names, or ""."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute) and (before := chain(node.value, known)):
        return f"{before}.{node.attr}"
    return ""


def is_module(name: str) -> bool:
    return isinstance(resolved(name), ModuleType)


def resolved(name: str) -> object:
    """Returns what stands under a full name while the modules are installed, or None."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except Exception:  # noqa: S112  not a module: a shorter name may be
            continue
        for part in parts[end:]:
            try:
                value = getattr(value, part)
            except Exception:
                return value if part in dir(value) else None  # what is known in a run alone
        return value
    return None


def apis(root: Path) -> None:
    """Prints how many files use only what is there, and what the others want."""
    wanting: dict[str, set[str]] = defaultdict(set)
    complete, total = Counter[str](), Counter[str]()
    with nki.installed():
        for file in sorted(root.rglob("*.py")):
            if not (names := used(file)):
                continue
            dialect = "legacy" if any(n.startswith("neuronxcc.") for n in names) else "current"
            missing = {n for n in names if resolved(n) is None}
            total[dialect] += 1
            complete[dialect] += not missing
            for name in missing:
                wanting[name].add(str(file.relative_to(root)))
    for dialect in sorted(total):
        print(f"{dialect}: {complete[dialect]} of {total[dialect]} files use only what is there")
    ordered = sorted(wanting.items(), key=lambda item: (-len(item[1]), item[0]))
    for name, files in ordered:
        print(f"  {len(files):4} files want {name}, such as {min(files)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", help="a checkout: AccelOpt, nki-samples, the SDK's documents, nki-library")
    parser.add_argument("--target", default="trn1", help="trn1, inf2, trn2 or trn3")
    parser.add_argument("--apis", action="store_true", help="read the files and run nothing")
    parser.add_argument("--only", default="", help="kernels whose names contain this")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for a kernel")
    parser.add_argument("--memory-gb", type=float, default=16, help="memory for a kernel")
    parser.add_argument("--without-values", action="store_true", help="also run each without values")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        limit = int(arguments.memory_gb * GB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        job = Job(**json.loads(arguments.one))
        print(json.dumps(asdict(carried_out(job, arguments.target, arguments.without_values))))
    elif arguments.apis:
        apis(Path(arguments.path))
    else:
        wanted = [job for job in jobs(Path(arguments.path).resolve()) if arguments.only in job.name]
        if not wanted:
            sys.exit(f"no kernel with a reference in {arguments.path}")
        outcomes = []
        for job in wanted:
            outcomes.append(in_process(job, arguments))
            print(f"{job.name}: {outcomes[-1].refused or 'ran'}", file=sys.stderr, flush=True)
        printed(outcomes, arguments.without_values)
        sys.exit(0 if all(o.equal for o in outcomes) else 1)


if __name__ == "__main__":
    main()
