"""`--kernel` from outside: profiles, simulations, plans and servers with a kernel in the place of an Op."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.chips.engines import OpCost
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import RMSNorm
from corepipe.neuron.step import StepShape
from corepipe.nki.ops.kernels import ModelKernels
from corepipe.scheduler.next_batch import policy
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.simulation.simulate import run as simulated
from corepipe.workload.workload import Segment, Session, Turn, Workload
from tests.nki import op_files
from tests.parity import expected
from tests.servers import TINY, run, served
from tests.simulation.simulations import bytes_of, limits, workload

EXAMPLES = Path(__file__).parents[2] / "examples" / "nki"
DEVICE = ("--instance", "trn1.2xlarge", "--pipeline", "1", "--tensor", "1", "--data", "1")
ONE_CORE: dict[str, Any] = {"pipeline": 1, "tensor": 1, "data": 1}
BF16 = FORMATS["bf16"]
SMALL = ("--max-model-len", "128", "--max-num-seqs", "1", "--max-num-batched-tokens", "128")
PROFILED = ("profile", str(TINY), *DEVICE, "--input-len", "64", "--batch", "2", "--json")


@pytest.fixture(scope="module")
def norms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return op_files.write(tmp_path_factory.mktemp("kernels"))


def with_norm(norms: Path, name: str) -> tuple[str, str]:
    return "--kernel", f"rmsnorm={norms}:{name}"


def test_a_profile_has_the_kernels_times_and_says_how_it_compares(norms: Path) -> None:
    plain, other = (json.loads(run(*PROFILED, *more).stdout) for more in ((), with_norm(norms, "right")))
    assert "kernels" not in plain
    (kernel,) = other["kernels"]
    assert kernel["kernel"] == f"rmsnorm={norms}:right"
    assert kernel["largest_difference"] < kernel["bound"] == 1 / 32
    assert {tuple(time["sizes"]) for time in kernel["microseconds"]} >= {(1, 0), (128, 0)}
    assert all(b["seconds"] > a["seconds"] for a, b in zip(plain["steps"], other["steps"], strict=True))
    assert "--profile async" not in str(other["bottlenecks"])  # its own, with the kernel as well


def test_a_step_takes_as_much_longer_as_its_norms_do(norms: Path) -> None:
    options: dict[str, Any] = {"instance": "trn1.2xlarge", "profile": "ideal", "clock": "virtual", **ONE_CORE}
    model = registry.load(TINY)
    plain = plan_device(EngineConfig(model=str(TINY), **options), model)
    other = plan_device(EngineConfig(model=str(TINY), kernels=(f"rmsnorm={norms}:right",), **options), model)
    shape = StepShape.decode(1, 40)
    costs = [device.timeline(0).cost for device in (plain, other)]
    times = [cost.op_times(0, shape) for cost in costs]
    (runs,) = other.describe()["kernels"]  # type: ignore[misc,has-type]
    alone = {tuple(time["sizes"]): time["microseconds"] for time in runs["microseconds"]}[1, 0]  # type: ignore[attr-defined]
    for old, new in zip(*times, strict=True):
        wanted = alone * 1e-6 if isinstance(old.op, RMSNorm) else old.end - old.start
        assert new.end - new.start == pytest.approx(wanted, rel=1e-9)
    assert costs[1].seconds(0, shape) == pytest.approx(times[1][-1].end)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("rmsnorm={}:doubled", "computes something else than the model's RMSNorm: [0, "),
        ("rmsnorm={}:without_gain", "the bound is 0.031 of the largest"),
        ("rmsnorm={}:half_a_row", "returns [1, 32], and not [1, 64] for [1, 64], [64]"),
        ("rmsnorm={}:whole_tiles", "rows must fill the partitions, for [1, 64], [64] on trn1"),
        ("rmsnorm={}:number", "has no function number"),
        ("rmsnorm={}:nothing", "has no function nothing"),
        ("rmsnorm={}.no:right", "No such file"),
        ("norm={}:right", "has no Op norm; kernels can compute its rmsnorm, swiglu, attention, "),
        ("scan={}:right", "has no such Op; kernels can compute its rmsnorm, swiglu"),
        ("rmsnorm={}", "give OP=FILE:ENTRY"),
        ("{}:right", "give OP=FILE:ENTRY"),
    ],
)  # fmt: skip
def test_a_kernel_that_cannot_stand_for_the_op_is_refused_in_a_line(
    norms: Path, kernel: str, words: str
) -> None:
    done = run(*PROFILED, "--kernel", kernel.format(norms))
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("corepipe: "))
    assert line.startswith("corepipe: --kernel")
    assert words in line
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (PROFILED, "there are two kernels for rmsnorm"),
        (("serve", str(TINY), *DEVICE), "add --clock device"),
        (("serve", str(TINY), *DEVICE, "--clock", "device", "--models-dir", "."), "not with --models-dir"),
        (("profile", str(TINY), "--ladder"), "--kernel is set by --ladder itself"),
        (("plan", str(TINY), "--rate", "1", "--ttft", "1s", "--emit", "helm"), "--kernel is not for --emit"),
    ],
)
def test_flags_that_kernels_do_not_go_with(norms: Path, flags: tuple[str, ...], words: str) -> None:
    more = with_norm(norms, "right")
    done = run(*flags, *more, *(more if flags is PROFILED else ()))
    assert done.returncode == 2
    assert words in done.stderr


def test_a_wrong_kernel_ends_a_plan_and_a_right_one_is_in_its_commands(norms: Path) -> None:
    asked = (
        "plan",
        str(TINY),
        "--instance",
        "trn1.2xlarge",
        "--dtype",
        "bf16",
        "--rate",
        "5",
        "--ttft",
        "1s",
    )
    sizes = ("--input-len", "40", "--output-len", "8", "--max-model-len", "64", "--json")
    wrong = run(*asked, *sizes, *with_norm(norms, "doubled"))
    assert wrong.returncode == 2
    assert "computes something else" in wrong.stderr
    right = run(*asked, *sizes, *with_norm(norms, "right"))
    assert right.returncode == 0, right.stderr
    kernel = f"rmsnorm={norms}:right"
    commands = json.loads(right.stdout)["commands"]
    assert kernel in " ".join(map(str, commands.values()))


def norm_of_tiny(eps: float) -> RMSNorm:
    graph = registry.architecture(str(TINY)).graph(BF16, 64)
    return replace(next(op for op in graph.ops if isinstance(op, RMSNorm)), eps=eps)


def test_a_kernel_without_a_parameter_has_its_default(norms: Path) -> None:
    graph = registry.architecture(str(TINY)).graph(BF16, 64)
    fixed, any_eps = (ModelKernels([f"rmsnorm={norms}:{name}"], graph) for name in ("right", "any_eps"))
    for eps in (1e-5, 0.1):
        any_eps.cost(norm_of_tiny(eps), OpCost(0), BF16, ("v2", 1))
    fixed.cost(norm_of_tiny(1e-5), OpCost(0), BF16, ("v2", 1))
    with pytest.raises(UserError, match=r"has no parameter eps, which is 0.1 here, not 1e-05"):
        fixed.cost(norm_of_tiny(0.1), OpCost(0), BF16, ("v2", 1))


def test_generations_without_nki_are_refused_as_a_place_and_not_as_a_kernel(norms: Path) -> None:
    graph = registry.architecture(str(TINY)).graph(BF16, 64)
    kernels = ModelKernels([f"rmsnorm={norms}:right"], graph)
    with pytest.raises(UserError, match="NKI has no NeuronCores of inf1") as refused:
        kernels.cost(norm_of_tiny(1e-5), OpCost(0), BF16, ("v1", 1))
    assert refused.value.param == "instance"


PROMPT, ANSWER = 40, 8


def load() -> Workload:
    def sessions() -> Iterator[Session]:
        yield Session(0.0, (Turn((Segment(0, PROMPT),), ANSWER, 1),))

    return Workload(sessions, requests=1)


@dataclass(frozen=True)
class Bridged:
    """A model on a device that is emulated in three ways, with kernels for its Ops."""

    model: Path
    kernels: tuple[str, ...]

    @property
    def flags(self) -> list[str]:
        return [word for kernel in self.kernels for word in ("--kernel", kernel)]

    def served(self) -> tuple[dict[str, Any], list[str]]:
        """Returns what a server at the device's pace says of a request, and the kernels that it has."""
        paced = (*DEVICE, *SMALL, "--dtype", "bf16", "--clock", "device", *self.flags)
        with served(self.model, *paced) as server:
            started = runs_of(self.kernels)
            body = {"prompt": [5] * PROMPT, "max_tokens": ANSWER, "ignore_eos": True, "device_metrics": True}
            answer = server.post("/v1/completions", json={"model": server.model, **body}).json()
            placed = server.get("/v1/placement").json()
            assert runs_of(self.kernels) == started  # none has run since the start
        return answer["corepipe"], [one["kernel"] for one in placed["kernels"]]

    def simulated(self) -> tuple[float, float]:
        """Returns the seconds to the first token, and for each that follows."""
        limited = {"max_model_len": 128, "max_num_seqs": 1, "max_num_batched_tokens": 128}
        given = {"instance": "trn1.2xlarge", "format": "bf16", "kernels": self.kernels, **ONE_CORE, **limited}
        config = EngineConfig.model_validate({"model": str(self.model), **given})
        requests = simulate(SimulationConfig(config), load()).requests
        (start,), (end,) = requests["first_at"], requests["last_at"]
        return float(start), float(end - start) / (ANSWER - 1)

    def profiled(self) -> tuple[float, float]:
        """Returns the seconds of a prompt's step, and of the first decode step."""
        sizes = ("--batch", 1, "--input-len", PROMPT, "--output-steps", 1, "--max-model-len", 128, "--json")
        done = run("profile", self.model, *DEVICE, "--profile", "vllm-neuron", *sizes, *self.flags)
        prompt, token = (step["seconds"] for step in json.loads(done.stdout)["steps"])
        return prompt, token


def small_mamba2(folder: Path) -> Path:
    """Writes a recurrent model, with the tokenizer of another."""
    for file in TINY.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return expected.load("mamba2").write(folder)


def runs_of(kernels: Sequence[str]) -> list[str]:
    """Returns the notes of the kernels that count their runs."""
    files = [Path(kernel.partition("=")[2].rpartition(":")[0] + ".runs") for kernel in kernels]
    return [file.read_text() for file in files if file.exists()]


@pytest.mark.parametrize("name", ["norms", "attention", "scan"])
def test_a_server_at_the_devices_pace_a_simulation_and_a_profile_agree(
    name: str, norms: Path, tmp_path: Path
) -> None:
    """The server runs kernels while it starts, and never again."""
    attention, scan = EXAMPLES / "attention.py", EXAMPLES / "scan.py"
    answers = EXAMPLES / "scan_decode.py"
    cases = {
        "norms": (TINY, (f"rmsnorm={norms}:counted",)),
        "attention": (
            TINY,
            (f"attention={attention}:attention_prompt", f"attention-decode={attention}:attention_decode"),
        ),
        "scan": (small_mamba2(tmp_path), (f"scan={scan}:scan_5", f"scan-decode={answers}:scan_decode")),
    }  # fmt: skip
    case = Bridged(*cases[name])
    told, kernels = case.served()
    assert tuple(kernels) == case.kernels
    assert (runs_of(case.kernels) != []) is (name == "norms")
    first, each = case.simulated()
    assert told["time_to_first_token_ms"] == pytest.approx(1e3 * first, rel=1e-9)
    assert told["time_per_output_token_ms"] == pytest.approx(1e3 * each, rel=1e-9)
    prompt, token = case.profiled()
    assert prompt == pytest.approx(first, rel=1e-9)
    assert token == pytest.approx(each, rel=0.02)


def test_the_loop_that_serves_and_its_native_version_agree(norms: Path) -> None:
    config = EngineConfig(
        model=str(TINY), instance="trn1.2xlarge", kernels=(f"rmsnorm={norms}:right",), clock="virtual",
        **ONE_CORE,
    )  # fmt: skip
    device = plan_device(config, registry.load(TINY))
    lines = [device.timelines() for _ in range(2)]
    limited = limits(num_blocks=200)
    native, plain = (
        Scenario(limited, policy("segregated"), line, workload(30, 200.0, "uniform:5:90")) for line in lines
    )
    assert bytes_of(simulated(native)) == bytes_of(LoopedSimulation(plain).run())
