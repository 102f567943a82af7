"""Runtime profiles: the effect of the software between a request and the cores, each with its source.

A profile is chosen by name or read from a file that `corepipe fit` wrote; no property of a model or an
instance chooses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from corepipe.errors import UserError
from corepipe.neuron.chips.constants import as_json, parse, shipped
from corepipe.neuron.chips.native_plugin import DEFAULT_CHUNK, KvBudget
from corepipe.neuron.chips.runtime_profile import (
    NEVER,
    AttentionKernel,
    AttentionStyle,
    Buckets,
    ExpertParallel,
    RuntimeProfile,
    SamplingLocation,
)
from corepipe.neuron.chips.scales import parse as parse_scales

_ASYNC_GAP = "vllm-neuron/docs/design/framework/async_execution.md: gap per step"
_EMPTY = "src/neuronperf/model_neuron_b1.csv: time of an empty model"
_BUCKETS = "libraries/nxd-inference/developer_guides/ (bucketing, ctx_batch_size, on_device_sampling_config)"
_PIPELINE = "about-neuron/arch/neuron-features/neuroncore-pipeline.rst"
_BEAMS = (
    "src/examples/pytorch/neuronx_distributed/t5-inference/ (t5_models.py, wrapper.py: num_beams, aliases)"
)
_TNX = "libraries/transformers-neuronx/ (n_positions, GQA.REPLICATED_HEADS, logits to the host)"
_TNX_SAMPLES = (
    "aws-neuron-samples torch-neuronx/transformers-neuronx/inference (attention_layout BSH and fuse_qkv "
    "since the samples of SDK 2.18.1, HSB before)"
)
_TNX_PLAIN = "aws-neuron/transformers-neuronx at 7a30b42, llama/hlo.py, mistral/hlo.py"
_TNX_FLASH = "aws-neuron/transformers-neuronx at c8d6bdc, llama/hlo.py (a flash kernel from buckets of 4096)"
_NXDI_KERNEL = (
    "neuronx-distributed-inference modules/attention/attention_base.py, releases for SDK 2.22 to 2.28"
)

_HOST_SAMPLING = (
    "optimum-neuron benchmark/vllm/chunked-prefill/README.md: 48.2 ms a token of 32 sequences where sampling "
    "on the device takes 24.5"
)
HOST_SECONDS_PER_LOGIT = 4.5e-9
"""Host time of sampling, per logit: the difference of those two, by 32 x 128,256 logits and the link."""

_TGI = (
    "huggingface/text-generation-inference docs/source/reference/launcher.md (--waiting-served-ratio 0.3, "
    "--max-waiting-tokens 20)"
)
_EXPERTS = (
    "neuronx-distributed modules/moe/expert_mlps_v2.py, ExpertMLPsV2.forward (expert parallel: "
    "forward_all_experts_EP, none where few experts are loaded)"
)
_TRACED = (
    "torch_neuronx.trace: a graph for each (batch, length), what is smaller is padded, on every core a copy "
    "(optimum-neuron docs/source/supported_architectures.mdx)"
)

_IDEAL = RuntimeProfile(
    name="ideal", host_seconds=0.0, policy="mixed", source="no host, no buckets: what the cores alone take"
)
_TRANSFORMERS_NEURONX = RuntimeProfile(
    name="transformers-neuronx",
    host_seconds=28e-6,
    prefill_buckets=Buckets.HALVES,
    decode_buckets=Buckets.POWERS,
    pads_batch=True,
    batched_prefill=True,
    attention=AttentionStyle(
        causal_from=(NEVER, NEVER),
        expands_kv=True,
        gathers_kv=False,
        masks_window=True,
        softmax_after_reads=True,
    ),
    sampling=SamplingLocation.HOST,
    otherwise="transformers-neuronx-spilled",
    source=f"{_TNX}; {_TNX_SAMPLES}; {_EMPTY}",
)
_SPILLED = AttentionStyle(softmax_after_reads=True, kernel=AttentionKernel.SEPARATE, crossings=(3, 4))
"""Scores of one prompt that do not stay on chip: the product, the exponential and the quotient are written;
the maximum with the mask, the exponential, the quotient and the product with the values read them.  Which
prompts the compiler runs so is not documented: docs/prediction.md, "Two values"."""

_OPTIMUM_TNX = replace(
    _TRANSFORMERS_NEURONX,
    name="optimum-tnx",
    prefill_buckets=Buckets.SINGLE,
    decode_buckets=Buckets.SINGLE,
    batched_prefill=False,
    attention=AttentionStyle(expands_kv=True, masks_window=True, softmax_after_reads=True),
    otherwise="optimum-tnx-spilled",
    source=f"optimum-neuron's exports (n_positions = [sequence_length], continuous batching); {_TNX}",
)
_NXDI = RuntimeProfile(
    name="nxdi",
    host_seconds=437e-6,
    prefill_buckets=Buckets.POWERS,
    decode_buckets=Buckets.POWERS,
    pads_batch=True,
    attention=AttentionStyle(causal_from=(4096, 256), softmax_after_reads=True),
    expert_parallel=ExpertParallel.FULL,
    source=f"{_BUCKETS}; {_NXDI_KERNEL}; {_ASYNC_GAP}; {_EXPERTS}",
)
_OPTIMUM_NXDI = replace(
    _NXDI,
    name="optimum-nxdi",
    prefill_buckets=Buckets.SINGLE,
    decode_buckets=Buckets.SINGLE,
    source=f"optimum-neuron's exports (one bucket of sequence_length, on-device sampling); {_ASYNC_GAP}",
)
_ALL = (
    _IDEAL,
    replace(_IDEAL, name="async", host_seconds=28e-6, asynchronous=True, source=_EMPTY),
    replace(_IDEAL, name="sync", host_seconds=437e-6, source=_ASYNC_GAP),
    _TRANSFORMERS_NEURONX,
    replace(
        _TRANSFORMERS_NEURONX,
        name="transformers-neuronx-hsb",
        attention=replace(
            _TRANSFORMERS_NEURONX.attention,
            kernel=AttentionKernel.SEPARATE,
            separate_from=2,
            batch_innermost=True,
        ),
        otherwise="transformers-neuronx-hsb-spilled",
        source=f"{_TNX}; {_TNX_SAMPLES}; {_TNX_PLAIN}; {_EMPTY}",
    ),
    replace(
        _TRANSFORMERS_NEURONX,
        name="transformers-neuronx-hsb-spilled",
        attention=replace(
            _TRANSFORMERS_NEURONX.attention, kernel=AttentionKernel.SEPARATE, batch_innermost=True
        ),
        otherwise="",
        source=f"{_TNX}; {_TNX_SAMPLES}; {_TNX_PLAIN}; {_EMPTY}",
    ),
    replace(
        _TRANSFORMERS_NEURONX,
        name="transformers-neuronx-flash",
        attention=replace(_TRANSFORMERS_NEURONX.attention, causal_from=(4096, 4096)),
        otherwise="",
        source=f"{_TNX}; {_TNX_FLASH}; {_EMPTY}",
    ),
    replace(
        _TRANSFORMERS_NEURONX,
        name="transformers-neuronx-spilled",
        attention=replace(
            _TRANSFORMERS_NEURONX.attention, kernel=_SPILLED.kernel, crossings=_SPILLED.crossings
        ),
        otherwise="",
    ),
    _OPTIMUM_TNX,
    replace(
        _OPTIMUM_TNX,
        name="optimum-tnx-spilled",
        attention=replace(_OPTIMUM_TNX.attention, kernel=_SPILLED.kernel, crossings=_SPILLED.crossings),
        otherwise="",
    ),
    replace(
        _OPTIMUM_TNX,
        name="optimum-tnx-host-sampling",
        host_seconds_per_logit=HOST_SECONDS_PER_LOGIT,
        otherwise="",
        policy="waves",
        source=f"{_TNX}; optimum-neuron 6ba3db94, generator.py: a slot's token is sampled on the host, one "
        f"slot after the other; {_HOST_SAMPLING}; {_TGI}",
    ),
    _NXDI,
    replace(
        _NXDI,
        name="nxdi-trn2",
        prefill_buckets=Buckets.TUTORIAL,
        sequence_parallel=True,
        source=f"{_NXDI.source}; libraries/nxd-inference/tutorials/"
        "trn2-llama3.1-405b-speculative-tutorial.rst",
    ),
    _OPTIMUM_NXDI,
    replace(_OPTIMUM_NXDI, name="optimum-nxdi-tgi", policy="waves", source=f"{_OPTIMUM_NXDI.source}; {_TGI}"),
    replace(
        _OPTIMUM_NXDI,
        name="stack-unknown",
        otherwise="optimum-tnx-host-sampling",
        source="a server that does not say its software: optimum-neuron's exports through NxD Inference, or "
        "through transformers-neuronx before 2025",
    ),
    replace(
        _NXDI,
        name="vllm-neuron",
        host_seconds=28e-6,
        asynchronous=True,
        source=f"{_BUCKETS}; vllm-neuron/docs/design/framework/async_execution.md: asynchronous by default",
    ),
    replace(
        _NXDI,
        name="vllm-host-sampling",
        sampling=SamplingLocation.HOST,
        host_seconds_per_logit=HOST_SECONDS_PER_LOGIT,
        source=f"{_BUCKETS}; {_HOST_SAMPLING}",
    ),
    RuntimeProfile(
        name="vllm-neuron-native",
        host_seconds=28e-6,
        change_seconds=437e-6,
        asynchronous=True,
        prefill_buckets=Buckets.CHUNKS,
        chunk=DEFAULT_CHUNK,
        decode_buckets=Buckets.SINGLE,
        pads_batch=True,
        batch_powers=True,
        attention=AttentionStyle(fuses_rope=True, softmax_after_reads=True),
        sequence_parallel=True,
        expert_parallel=ExpertParallel.ALL,
        kv_budget=KvBudget(),
        source=f"vllm-neuron/docs/ (neuron-scheduler.md, prefix-caching.md, reference-configuration.md, "
        f"padding-batching-block-kv.md, determine_available_memory_design.md, tensor_parallelism.md); "
        f"{_ASYNC_GAP}, where a batch changes; {_EMPTY}",
    ),
    replace(
        _IDEAL,
        name="traced",
        host_seconds=28e-6,
        prefill_buckets=Buckets.POWERS,
        pads_batch=True,
        batch_powers=True,
        batched_prefill=True,
        attention=AttentionStyle(masks_window=True),
        source=f"{_TRACED}; {_BUCKETS}; {_EMPTY}",
    ),
    replace(_IDEAL, name="data-parallel", host_seconds=28e-6, source=f"torch-neuronx DataParallel; {_EMPTY}"),
    replace(
        _IDEAL,
        name="data-parallel-sdk-2.9",
        host_seconds=28e-6,
        result_copies=2,
        source=f"torch-neuronx DataParallel; measurements of SDK 2.9 alone: docs/prediction.md; {_EMPTY}",
    ),
    replace(
        _IDEAL,
        name="data-parallel-2",
        host_seconds=28e-6,
        workers=2,
        source=f"NeuronPerf with workers_per_model 2: about-neuron/benchmarks/ (inline notes); {_EMPTY}",
    ),
    replace(
        _IDEAL,
        name="beam-search",
        host_seconds=437e-6,
        decode_buckets=Buckets.SINGLE,
        policy="segregated",
        attention=AttentionStyle(gathers_kv=False, rewrites_kv=True),
        beams=4,
        source=f"{_BEAMS}; {_ASYNC_GAP}",
    ),
    replace(_IDEAL, name="neuroncore-pipeline", host_seconds=28e-6, source=f"{_PIPELINE}; {_EMPTY}"),
)

PROFILES: Mapping[str, RuntimeProfile] = MappingProxyType({p.name: p for p in _ALL})
"""The profiles that come with corepipe, by name."""


def profile(source: str) -> RuntimeProfile:
    """Returns the profile called `source`, or the one in the file `source`.  Raises UserError."""
    if source in PROFILES:
        return PROFILES[source]
    path = Path(source)
    if not path.is_file():
        raise UserError(f"--profile {source}: no such file, nor one of {', '.join(PROFILES)}", "profile")
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--profile {source}: not a profile that `corepipe fit` wrote: {error}", "profile"
        ) from error


def _read(path: Path) -> RuntimeProfile:
    values = json.loads(path.read_text())
    constants = tuple((str(version), parse(v)) for version, v in sorted(values["constants"].items()))
    if unknown := {version for version, _ in constants} - set(shipped()):
        raise ValueError(f"unknown generation of cores {', '.join(sorted(unknown))}")
    base = PROFILES[values["base"]]
    return replace(
        base,
        name=str(values["name"]),
        source=str(values["source"]),
        constants=constants,
        scales=parse_scales(values.get("scales", {})),
        refines=base.name,
        otherwise="",
        narrowed=tuple((str(kind), _share(share)) for kind, share in values.get("narrowed", {}).items()),
    )


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"a width's share must be above 0 and up to 1, not {value!r:.40}")
    return float(value)


def as_text(profile: RuntimeProfile, base: str, about: Mapping[str, object]) -> str:
    """Returns a file that `profile` reads: its constants over the profile `base`; `about` is information for
    people."""
    constants = {version: as_json(constants) for version, constants in profile.constants}
    record = {
        "name": profile.name,
        "base": base,
        "source": profile.source,
        "constants": constants,
        "scales": profile.scales.as_json(),
        "narrowed": dict(profile.narrowed),
        "fit": about,
    }
    return json.dumps(record, indent=1) + "\n"
