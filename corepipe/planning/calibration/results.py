"""Results of load tests as rows of measurements: of `corepipe bench`, `vllm bench serve` and guidellm.

Such a result holds the load and the answers, but not the hardware: that is given as `MeasuredDeployment`.
Fields are those of vLLM's benchmarks/serve.py (--save-result) and of guidellm's
benchmark/schemas/generative/metrics.py and scheduler/strategies.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from corepipe.errors import UserError
from corepipe.models import published
from corepipe.models.registry import architecture
from corepipe.planning.calibration.rows import Raw

MOST_BYTES = 1 << 28
"""Size of a result at most: those of guidellm hold every request."""

WHOLE = frozenset(("openai-embeddings", "classify", "vllm-rerank", "vllm-pooling"))
"""Names in load tests of the APIs that generate nothing."""

ALIKE = 0.02
"""Share by which the parameters of one model under two names may differ: tokens are added to vocabularies."""


@dataclass(frozen=True, slots=True)
class MeasuredDeployment:
    """The deployment that a load test measured; None: not given."""

    model: str | None
    instance: str | None
    dtype: str
    tensor: int
    pipeline: int
    data: int
    sequences: int | None
    longest: int | None
    expert: int = 1

    def columns(self, path: Path, model: str | None) -> dict[str, str]:
        """Returns its columns.  Raises UserError for a required value that was not given, and for a model
        that is not the one that the result names."""
        named = self.model or model
        if self.model and model and _differ(self.model, model):
            raise UserError(
                f"{path}: is of {model}, not of --model {self.model}: leave --model out, "
                "or give the result of that model",
                "model",
            )
        needed = {"--model": named, "--instance": self.instance, "--max-num-seqs": self.sequences}
        if missing := [flag for flag, value in needed.items() if not value]:
            raise UserError(
                f"{path}: a load test does not say what it ran on: give {', '.join(missing)}", missing[0][2:]
            )
        divided = f"xEP{self.expert}" if self.expert > 1 else ""
        return {
            "model": str(named),
            "instance": str(self.instance),
            "task": "serving",
            "dtype": self.dtype,
            "parallelism": f"TP{self.tensor}xPP{self.pipeline}xDP{self.data}{divided}",
            "batch_size": str(self.sequences),
            "seq_len": "" if self.longest is None else str(self.longest),
        }


def read_result(path: Path, deployed: MeasuredDeployment) -> list[Raw]:
    """Returns the rows of a result.  Raises UserError for a file that is none."""
    document = _document(path)
    runs = list(_runs(path, document))
    found: list[Raw] = []
    for number, (model, run) in enumerate(runs, 1):
        base = {**deployed.columns(path, model), "config_id": f"{path.name} {number}"}
        found += [{**base, **row} for row in run]
    if not found:
        raise UserError(f"{path}: holds no figure of a finished request")
    return found


def _document(path: Path) -> Mapping[str, Any]:
    file = path / "result.json" if path.is_dir() else path
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"{path}: is larger than {MOST_BYTES >> 20} MiB")
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not JSON ({error})") from error
    if not isinstance(document, Mapping):
        raise UserError(f"{path}: {_NEITHER}")
    _refuse_emulated(path, document)
    return document


def _refuse_emulated(path: Path, document: Mapping[str, Any]) -> None:
    """Raises UserError for results that corepipe has written for its own server, or for a prediction."""
    for run in (document, document.get("server"), document.get("device")):
        if isinstance(run, Mapping) and run.get("emulated") is True:
            instance = f" ({run['instance']})" if isinstance(run.get("instance"), str) else ""
            raise UserError(
                f"{path}: its device is emulated{instance}: what corepipe computes on a CPU or predicts "
                "is no measurement of an instance; give results of a server on Neuron"
            )


def _differ(model: str, named: str) -> bool:
    """Tells whether a result names a public model that is not `model`.  It may name a server's own alias."""
    try:
        told = architecture(published.resolve(named)).parameters
    except UserError:
        return False
    return abs(architecture(model).parameters / told - 1) > ALIKE


_NEITHER = "is no result of corepipe bench, vllm bench serve or guidellm"

_Run = tuple[str | None, list[dict[str, str]]]


def _runs(path: Path, document: Mapping[str, Any]) -> Iterator[_Run]:
    """Yields (model, rows) of each run that a result holds."""
    if isinstance(document.get("benchmarks"), list):
        for benchmark in document["benchmarks"]:
            if isinstance(benchmark, Mapping):
                yield _guidellm(path, benchmark)
    elif isinstance(document.get("stages"), list):  # a sweep of corepipe bench
        for run in document["stages"]:
            yield _vllm(path, run)
    else:
        yield _vllm(path, document)


def _vllm(path: Path, result: Mapping[str, Any]) -> _Run:
    """Returns a run of `vllm bench serve`, with `corepipe bench`'s keys: milliseconds, tokens, seconds."""
    if not isinstance(result, Mapping) or "request_throughput" not in result:
        raise UserError(f"{path}: {_NEITHER}")
    _refuse_emulated(path, result)
    if (kind := result.get("endpoint_type")) in WHOLE:
        raise UserError(f"{path}: is of {kind}: give a load test of what generates")
    completed = _number(result.get("completed")) or 0
    if completed < 1:
        return None, []
    load = {
        **_offered(result),
        "input_len": _count((_number(result.get("total_input_tokens")) or 0) / completed),
        "output_len": _count((_number(result.get("total_output_tokens")) or 0) / completed),
    }
    figures = [
        *(_figure(name, result.get(f"median_{name}_ms"), "ms", "p50") for name in ("ttft", "tpot")),
        _figure("itl", result.get("mean_itl_ms"), "ms", "mean"),
        _figure("request_latency", result.get("mean_e2el_ms"), "ms", "mean"),
        _figure("output_throughput", result.get("output_throughput"), "tokens/s", "mean"),
        _figure("request_rate", result.get("request_throughput"), "req/s", "mean"),
    ]
    model = result.get("model_id")
    return (model if isinstance(model, str) else None), [{**load, **row} for row in figures if row]


def _offered(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns the columns of the load: a Poisson process at a rate; a closed loop; or all at once."""
    rate, users = _number(result.get("request_rate")), _number(result.get("max_concurrency"))
    if rate is not None:
        return {"arrival": "poisson", "rate": repr(rate)}
    if users is not None:
        return {"arrival": "synchronous" if users == 1 else "concurrent", "users": _count(users)}
    return {"arrival": "burst", "users": _count(_number(result.get("num_prompts")) or 0)}


def _guidellm(path: Path, benchmark: Mapping[str, Any]) -> _Run:
    """Returns a benchmark of a guidellm report: request latencies are seconds, others milliseconds."""
    metrics, strategy = benchmark.get("metrics"), _strategy(benchmark)
    if not isinstance(metrics, Mapping) or not strategy:
        raise UserError(f"{path}: {_NEITHER}")
    load = {
        **_scheduled(strategy, metrics),
        "input_len": _count(_of(metrics, "prompt_token_count", "mean") or 0),
        "output_len": _count(_of(metrics, "output_token_count", "mean") or 0),
    }
    figures = [
        _figure("ttft", _of(metrics, "time_to_first_token_ms", "median"), "ms", "p50"),
        _figure("itl", _of(metrics, "inter_token_latency_ms", "mean"), "ms", "mean"),
        _figure("request_latency", _of(metrics, "request_latency", "mean"), "s", "mean"),
        _figure("output_throughput", _of(metrics, "output_tokens_per_second", "mean"), "tokens/s", "mean"),
        _figure("request_rate", _of(metrics, "requests_per_second", "mean"), "req/s", "mean"),
    ]
    return _backend_model(benchmark), [{**load, **row} for row in figures if row]


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the strategy of scheduling: in `config` since 0.5, in `scheduler` or `args` before."""
    for place in ("config", "scheduler", "args"):
        holder = benchmark.get(place)
        if isinstance(holder, Mapping) and isinstance(holder.get("strategy"), Mapping):
            strategy: Mapping[str, Any] = holder["strategy"]
            return strategy
    return {}


def _scheduled(strategy: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, str]:
    kind, rate = str(strategy.get("type_")), _number(strategy.get("rate"))
    if kind in {"constant", "poisson"} and rate is not None:
        return {"arrival": kind, "rate": repr(rate)}
    if kind == "synchronous":
        return {"arrival": kind, "users": "1"}
    seen = _of(metrics, "request_concurrency", "mean")
    users = _number(strategy.get("streams")) or _number(strategy.get("max_concurrency")) or seen
    return {"arrival": "concurrent", "users": _count(users or 0)}


def _of(metrics: Mapping[str, Any], name: str, statistic: str) -> float | None:
    """Returns a statistic of the requests that succeeded."""
    found = metrics.get(name)
    for key in ("successful", statistic):
        found = found.get(key) if isinstance(found, Mapping) else None
    return _number(found)


def _backend_model(benchmark: Mapping[str, Any]) -> str | None:
    config = benchmark.get("config")
    backend = config.get("backend") if isinstance(config, Mapping) else None
    model = backend.get("model") if isinstance(backend, Mapping) else None
    return model if isinstance(model, str) else None


def _figure(metric: str, value: object, unit: str, percentile: str) -> dict[str, str] | None:
    """Returns a row; None where the result has no such figure (0 stands for one not measured)."""
    number = _number(value)
    if not number:
        return None
    return {"metric": metric, "value": repr(number), "unit": unit, "percentile": percentile}


def _number(value: object) -> float | None:
    """Returns a finite number; None for "inf" and for a missing value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)


def _count(value: float) -> str:
    return str(max(1, round(value)))
