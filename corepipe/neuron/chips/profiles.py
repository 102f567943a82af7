"""Runtime profiles: the effect of the software between a request and the cores, each with its source.

A profile is chosen by name or read from a file that `corepipe fit` wrote; no property of a model or an
instance chooses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from corepipe.errors import UserError
from corepipe.neuron.chips.constants import Constants, as_json, parse, shipped
from corepipe.neuron.chips.native_plugin import DEFAULT_CHUNK, KvBudget
from corepipe.neuron.chips.scales import UNSCALED, Scales
from corepipe.neuron.chips.scales import parse as parse_scales

SMALLEST_BUCKET = 128
"""Smallest of the powers of two that graphs are compiled for: NxD Inference's developer guide, bucketing."""

HALVED_FROM = 64
"""The smallest of transformers-neuronx's prompt buckets, each half of a bucket for tokens (bucket.py)."""


class Buckets(StrEnum):
    """The lengths that graphs are compiled for: a shorter length is padded to the next."""

    EXACT = "any length"
    POWERS = "powers of two"
    HALVES = "halves of powers of two"
    SINGLE = "the longest sequence"
    CHUNKS = "one chunk, or powers of two where prompts are computed whole"

    def pad(self, length: int, longest: int) -> int:
        """Returns the bucket of `length` tokens, where sequences have up to `longest`."""
        match self:
            case Buckets.EXACT:
                return length
            case Buckets.SINGLE:
                return max(length, longest)
            case Buckets.CHUNKS:
                raise ValueError("how prompts are cut is not known here: see native_plugin.prefill")
            case Buckets.POWERS | Buckets.HALVES:
                smallest = SMALLEST_BUCKET if self is Buckets.POWERS else HALVED_FROM
                power = 1 << max(length - 1, smallest - 1).bit_length()
                return max(length, min(power, longest))


class AttentionKernel(StrEnum):
    """The kernel that computes a prompt's scores.

    SEPARATE: the whole square, each step of the softmax a separate operation.  SQUARE: the whole square in
    one kernel.  CAUSAL: one kernel that skips the scores that the causal mask hides.
    """

    SEPARATE = "separate"
    SQUARE = "square"
    CAUSAL = "causal"


NEVER = 1 << 40
"""The shortest prompt of a kernel that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStyle:
    """The way in which a software stack runs attention, whatever the model.

    kernel: for prompts in shorter buckets than causal_from, which has the shortest bucket of a causal kernel,
    on cores of one physical core and of two.  expands_kv: where keys and values are copied to more ranks than
    there are heads, each query head has its own copy.  gathers_kv: a sequence's keys and values are read
    token by token, as slots for continuous batching lie in memory, not in one piece.
    masks_window: a window is only a mask: hidden keys are kept, read and computed as all others.
    batch_innermost: hidden states are [width, tokens, sequences] (HSB), so that the elements of the keys and
    values of one of several prompts are not contiguous.
    rewrites_kv: a step of a beam search picks its beams' keys and values, appends to them, and writes all of
    them back.  fuses_rope: queries and keys are rotated within the kernel.
    """

    kernel: AttentionKernel = AttentionKernel.SQUARE
    causal_from: tuple[int, int] = (0, 0)
    expands_kv: bool = False
    gathers_kv: bool = True
    masks_window: bool = False
    batch_innermost: bool = False
    rewrites_kv: bool = False
    fuses_rope: bool = False

    def kernel_of(self, bucket: int, lnc: int) -> AttentionKernel:
        """Returns the kernel that prompts of a bucket run in."""
        return AttentionKernel.CAUSAL if bucket >= self.causal_from[lnc - 1] else self.kernel


class ExpertParallel(StrEnum):
    """The batches for which software divides experts among the tensor ranks."""

    FULL = "full"  # batches whose rows are routed to at least as many experts as there are
    ALL = "all"


class SamplingLocation(StrEnum):
    """The place where tokens are sampled: from logits that go to the host, or on the device."""

    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProfile:
    """The way in which a software stack runs a model.

    host_seconds: host time per step, one step after the other.  host_seconds_per_logit: host time of
    sampling, per logit.  prefill_buckets, decode_buckets: padding of the rows of a prompt, and of the context
    of a decode step.  pads_batch: decode steps run all sequences that the graph was compiled for.
    batched_prefill: a batch's prompts run in one step.  attention: how it attends.  policy: the scheduler's.
    asynchronous: the host works on the next step while the device runs this one.
    change_seconds: host time of a step whose sequences are not those of the step before, instead of
    host_seconds (None: the same).  batch_powers: with pads_batch, the batch is padded to a power of two.
    chunk: tokens of a prefill step unless another number is given (None: prompts as they come).
    sequence_parallel: ranks share the rows of a prefill between its collectives.  kv_budget: the part of a
    core's memory for keys and values (None: all that is left).
    workers: batches of an encoder that clients keep in flight on each core: one runs, the others wait.
    result_copies: how often the results of such a model are copied on their way to the host.
    beams: sequences that an encoder-decoder generates for each one.
    expert_parallel: the batches for which experts may be divided among the tensor ranks (None: never).
    constants: by generation of cores, instead of the shipped ones.
    scales: the measured times of a model's steps relative to the predicted ones, from a fit.  refines: the
    profile that a fit started from.  narrowed: by kind of figure, the share of its interval's width that
    remains after a fit.
    """

    name: str
    source: str
    host_seconds: float
    host_seconds_per_logit: float = 0.0
    prefill_buckets: Buckets = Buckets.EXACT
    decode_buckets: Buckets = Buckets.EXACT
    pads_batch: bool = False
    batched_prefill: bool = False
    attention: AttentionStyle = AttentionStyle()
    sampling: SamplingLocation = SamplingLocation.DEVICE
    policy: str = "segregated"
    asynchronous: bool = False
    workers: int = 1
    result_copies: int = 1
    change_seconds: float | None = None
    batch_powers: bool = False
    chunk: int | None = None
    sequence_parallel: bool = False
    kv_budget: KvBudget | None = None
    beams: int = 1
    expert_parallel: ExpertParallel | None = None
    constants: tuple[tuple[str, Constants], ...] = ()
    scales: Scales = UNSCALED
    refines: str = ""
    narrowed: tuple[tuple[str, float], ...] = ()

    @property
    def stack(self) -> str:
        """The name of the software: of the profile that a fit refined."""
        return self.refines or self.name

    def constants_of(self, version: str) -> Constants:
        """Returns the constants for cores of `version`."""
        return dict(self.constants).get(version) or shipped()[version]


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
        causal_from=(NEVER, NEVER), expands_kv=True, gathers_kv=False, masks_window=True
    ),
    sampling=SamplingLocation.HOST,
    source=f"{_TNX}; {_TNX_SAMPLES}; {_EMPTY}",
)
_NXDI = RuntimeProfile(
    name="nxdi",
    host_seconds=437e-6,
    prefill_buckets=Buckets.POWERS,
    decode_buckets=Buckets.POWERS,
    pads_batch=True,
    attention=AttentionStyle(causal_from=(4096, 256)),
    expert_parallel=ExpertParallel.FULL,
    source=f"{_BUCKETS}; {_NXDI_KERNEL}; {_ASYNC_GAP}; {_EXPERTS}",
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
            _TRANSFORMERS_NEURONX.attention, kernel=AttentionKernel.SEPARATE, batch_innermost=True
        ),
        source=f"{_TNX}; {_TNX_SAMPLES}; {_TNX_PLAIN}; {_EMPTY}",
    ),
    replace(
        _TRANSFORMERS_NEURONX,
        name="transformers-neuronx-flash",
        attention=replace(_TRANSFORMERS_NEURONX.attention, causal_from=(4096, 4096)),
        source=f"{_TNX}; {_TNX_FLASH}; {_EMPTY}",
    ),
    replace(
        _TRANSFORMERS_NEURONX,
        name="optimum-tnx",
        prefill_buckets=Buckets.SINGLE,
        decode_buckets=Buckets.SINGLE,
        batched_prefill=False,
        attention=AttentionStyle(expands_kv=True, masks_window=True),
        source=f"optimum-neuron's exports (n_positions = [sequence_length], continuous batching); {_TNX}",
    ),
    _NXDI,
    replace(
        _NXDI,
        name="optimum-nxdi",
        prefill_buckets=Buckets.SINGLE,
        decode_buckets=Buckets.SINGLE,
        source=f"optimum-neuron's exports (one bucket of sequence_length, on-device sampling); {_ASYNC_GAP}",
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
        host_seconds_per_logit=4.5e-9,
        source=f"{_BUCKETS}; optimum-neuron benchmark/vllm/chunked-prefill/README.md: 48.2 ms a token of 32 "
        "sequences where sampling on the device takes 24.5",
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
        attention=AttentionStyle(fuses_rope=True),
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
