"""The configuration of an engine: frozen, validated once, unknown keys refused.

A field with a `Flag` is a flag of the commands as well: its type, default, bounds and help stand here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from corepipe.engine.flag import BATCHING, DEVICE, MODEL, Flag
from corepipe.engine.lora import read_lora_module
from corepipe.engine.sizes import read_bytes
from corepipe.engine.speculative_config import SpeculativeConfig, read_speculation
from corepipe.errors import UserError
from corepipe.scheduler import defaults

Mode = Literal["auto", "latency", "throughput"]
ServedClock = Literal["host", "device"]
ClockName = Literal[ServedClock, "virtual"]
ServedFormat = Literal["fp32", "bf16", "int8", "int8-weights", "int4-weights"]
"""The formats that the kernels of this machine compute."""
FormatName = Literal[ServedFormat, "fp8", "mxfp8", "mxfp4"]
"""The last three are timed, and computed by devices alone: a server refuses them."""
BitsName = Literal["fast", "same"]
"""same: tokens and logprobs as on every other CPU; fast: those of the kernels that are the fastest here."""
KVCacheDtypeName = Literal["auto", "int8"]
"""Formats in which the host keeps keys and values; auto: as they are computed."""
TaskName = Literal["auto", "generate", "embed", "classify", "score"]
"""Uses of a model; auto: what the model was made for."""


_ZMQ_ADDRESS = r"^(tcp|ipc)://\S+$"


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KVEventsConfig(FrozenModel):
    """The publication of events of the prefix cache; names and defaults are vLLM's.

    endpoint: address of the PUB socket, bound where it has a wildcard, else connected to.  replay_endpoint:
    address of the ROUTER that repeats the latest `buffer_steps` batches.  hwm: batches that wait for a slow
    subscriber before it misses some.  max_queue_size is without effect: no batch waits for its turn here.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] = "zmq"
    endpoint: str = Field(default="tcp://*:5557", pattern=_ZMQ_ADDRESS)
    replay_endpoint: str | None = Field(default=None, pattern=_ZMQ_ADDRESS)
    buffer_steps: int = Field(default=10_000, ge=1, le=1_000_000)
    hwm: int = Field(default=100_000, ge=1, le=10_000_000)
    max_queue_size: int = Field(default=100_000, ge=1)
    topic: str = Field(default="", max_length=512)

    @property
    def publishes(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"


class EngineConfig(FrozenModel):
    """One deployment: a model, a format, and where its parts go.

    None stands for "choose for me"; `corepipe.engine.assembly.assembly.assemble` resolves it.  `cores`: the
    NeuronCores of the instance that it may take, from `first_core` on; None: all.
    """

    model: Annotated[str, Flag(MODEL, argument=True, chart="model")] = Field(
        description="Model to serve: a directory, a .gguf file or a hub id (org/name or org/name@revision); "
        "without it SmolLM2-135M-Instruct is served."
    )
    format: Annotated[
        FormatName, Flag(MODEL, ("--dtype",), choices=ServedFormat, also=True, chart="format")
    ] = Field(
        default="int8",
        description="Number format of weights and arithmetic. int8: INT8 weights and activations; "
        "int8-weights: INT8 weights, computed in bf16; int4-weights: 4-bit weights and INT8 activations.",
    )
    bits: Annotated[BitsName, Flag(MODEL, also=True, chart="bits")] = Field(
        default="fast",
        description="fast: the fastest kernels of this CPU; same: tokens and logprobs are the same on every "
        "CPU, and take somewhat longer.",
    )
    max_model_len: Annotated[int | None, Flag(MODEL, also=True, chart="batching.maxModelLen")] = Field(
        default=None, ge=2, description="Most tokens of a request: its prompt and its answer together."
    )
    task: Annotated[TaskName, Flag(MODEL, also=True, chart="task")] = Field(
        default="auto",
        description="Use of the model; auto: what it was made for, as its files say.",
    )
    seed: Annotated[int, Flag(MODEL, chart="seed")] = Field(
        default=0, description="Random seed of requests that bring none of their own."
    )
    enable_lora: Annotated[bool, Flag(MODEL, also=True, chart="lora.enabled")] = Field(
        default=False,
        description="Serve LoRA adapters, which can be loaded and unloaded while the server runs; "
        "--lora-modules and --lora-dir imply it.",
    )
    lora_modules: Annotated[tuple[str, ...], Flag(MODEL, metavar="NAME=PATH")] = Field(
        default=(),
        description='LoRA adapter to load at the start: NAME=PATH, or JSON such as {"name": "sql", '
        '"path": "/adapters/sql"} (repeatable). Requests that name it as their model are answered with it.',
    )
    lora_dir: Annotated[Path | None, Flag(MODEL, also=True, chart="lora.dir")] = Field(
        default=None,
        description="Directory of LoRA adapters: a request for a model NAME that is not loaded loads "
        "DIR/NAME.",
    )
    max_loras: Annotated[int, Flag(MODEL, also=True, chart="lora.maxLoras")] = Field(
        default=8, ge=1, le=256, description="Most LoRA adapters that are loaded at once."
    )
    max_lora_rank: Annotated[int, Flag(MODEL, also=True, chart="lora.maxLoraRank")] = Field(
        default=16, ge=1, le=512, description="Highest rank of a LoRA adapter."
    )
    instance: Annotated[str, Flag(DEVICE, chart="instance")] = Field(
        default="inf2.xlarge", description="Instance size to emulate, of inf1, inf2, trn1, trn2 or trn3."
    )
    lnc: Annotated[Literal[1, 2] | None, Flag(DEVICE, served=False)] = Field(
        default=None,
        description="Physical cores that form one logical NeuronCore: 1, or 2 on trn2 and trn3.",
    )
    mode: Annotated[Mode, Flag(DEVICE, also=True, chart="placement.mode")] = Field(
        default="auto",
        description="Aim of the placement of the model on the cores; degrees that are given, such as "
        "--tensor, take precedence.",
    )
    pipeline: Annotated[
        int | None,
        Flag(DEVICE, ("--pipeline", "--pipeline-parallel-size"), also=True, chart="placement.pipeline"),
    ] = Field(
        default=None,
        ge=1,
        description="Pipeline stages: groups of consecutive layers, each on its own cores.",
    )
    tensor: Annotated[
        int | None, Flag(DEVICE, ("--tensor", "--tensor-parallel-size"), also=True, chart="placement.tensor")
    ] = Field(default=None, ge=1, description="Cores that share the work of each layer.")
    data: Annotated[
        int | None, Flag(DEVICE, ("--data", "--data-parallel-size"), also=True, chart="placement.data")
    ] = Field(
        default=None, ge=1, description="Replicas: copies of the whole model, each with cores of its own."
    )
    expert: Annotated[int | None, Flag(DEVICE, also=True, chart="placement.expert")] = Field(
        default=None,
        ge=1,
        description="Cores of a stage that divide the experts of a mixture-of-experts model.",
    )
    clock: Annotated[ClockName, Flag(DEVICE, choices=ServedClock, chart="clock")] = Field(
        default="host",
        description="Pace of answers. host: as fast as this machine computes; device: that of the device.",
    )
    timing_model: Annotated[str | None, Flag(DEVICE, also=True, chart="timingModel")] = Field(
        default=None,
        description="Another model, whose time, memory and limits are emulated while MODEL computes the "
        "tokens: a config.json, or a name such as llama-3.1-70b.",
    )
    time_scale: Annotated[float, Flag(DEVICE, chart="timeScale")] = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds on this machine for one second of the device clock.",
    )
    profile: Annotated[str | None, Flag(DEVICE, also=True, chart="profile")] = Field(
        default=None,
        description="Software stack of the device: the name of a runtime profile, or a profile file.",
    )
    kernels: Annotated[tuple[str, ...], Flag(DEVICE, ("--kernel",), metavar="OP=FILE:ENTRY")] = Field(
        default=(),
        description="NKI kernel whose simulated time replaces that of an Op of the model (repeatable), after "
        "its outputs were compared with the Op's. FILE is run as Python, once, at the start. OP: rmsnorm, "
        "swiglu, attention, attention-decode, scan, scan-decode, experts.",
    )
    max_num_seqs: Annotated[int, Flag(BATCHING, also=True, chart="batching.maxNumSeqs")] = Field(
        default=defaults.MAX_NUM_SEQS, ge=1, le=1024, description="Most sequences in a batch."
    )
    max_num_batched_tokens: Annotated[
        int, Flag(BATCHING, also=True, chart="batching.maxNumBatchedTokens")
    ] = Field(default=defaults.MAX_NUM_BATCHED_TOKENS, ge=16, le=16384, description="Most tokens in a batch.")
    max_batch_delay: Annotated[float, Flag(BATCHING, also=True, chart="batching.maxBatchDelay")] = Field(
        default=0.0,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="Seconds that a batch waits for more requests before it starts; for models that "
        "generate no tokens, such as encoders.",
    )
    policy: Annotated[
        Literal["mixed", "segregated", "waves"] | None, Flag(BATCHING, also=True, chart="policy")
    ] = Field(
        default=None,
        description="mixed: a batch holds prefill and decode tokens together; segregated: one or the "
        "other, as on Neuron's own stack; waves: likewise, and requests join together, as TGI's router "
        "lets them; default: as the profile says.",
    )
    block_size: Annotated[int, Flag(BATCHING, also=True, chart="batching.blockSize")] = Field(
        default=defaults.BLOCK_SIZE,
        ge=16,
        le=128,
        multiple_of=16,
        description="Tokens in a KV block: 16, 32, ...",
    )
    num_blocks: Annotated[int | None, Flag(BATCHING, also=True, chart="batching.numBlocks")] = Field(
        default=None, ge=1, description="KV blocks of each replica; default: as many as fit into its memory."
    )
    kv_cache_bytes: Annotated[
        int | None,
        BeforeValidator(read_bytes),
        Flag(
            BATCHING,
            ("--kv-cache-memory-bytes",),
            metavar="BYTES",
            also=True,
            chart="batching.kvCacheMemoryBytes",
        ),
    ] = Field(
        default=None,
        ge=1,
        description="Memory of this machine for the KV blocks of all replicas, such as 2GiB; default: "
        "1 GiB, or half the memory where the device's limits count.",
    )
    kv_cache_dtype: Annotated[KVCacheDtypeName, Flag(BATCHING, also=True, chart="batching.kvCacheDtype")] = (
        Field(
            default="auto",
            description="Format in which this machine keeps keys and values. auto: as they are computed; "
            "int8: in half the memory. No device has it: its times and memory are those of auto.",
        )
    )
    speculative_config: Annotated[
        SpeculativeConfig | None, Flag(BATCHING, metavar="JSON", chart="batching.speculativeConfig")
    ] = Field(
        default=None,
        description="Speculative decoding: a draft of several tokens is checked in one step, so that the "
        "same answers come sooner. JSON with vLLM's names: method (ngram, draft_model), model, "
        "num_speculative_tokens, prompt_lookup_min, prompt_lookup_max; for the emulated device alone: "
        "rejection_sample_method (synthetic), synthetic_acceptance_rates.",
    )
    prefix_cache: Annotated[
        bool,
        Flag(
            BATCHING,
            ("--enable-prefix-caching/--no-enable-prefix-caching",),
            also=True,
            chart="batching.prefixCaching",
        ),
    ] = Field(default=True, description="Reuse the KV blocks of prompts that begin alike.")
    kv_events_config: Annotated[KVEventsConfig | None, Flag(BATCHING, metavar="JSON")] = Field(
        default=None,
        validate_default=True,
        description="Publish which blocks the prefix cache stores and removes: JSON with vLLM's names; "
        "needs corepipe[kv-events].",
    )
    max_queued_requests: Annotated[
        int, Flag(BATCHING, ("--max-num-queued-reqs",), also=True, chart="batching.maxNumQueuedReqs")
    ] = Field(
        default=defaults.MAX_QUEUED_REQUESTS, ge=1, description="Requests that may wait; more are refused."
    )
    max_queued_tokens: Annotated[
        int, Flag(BATCHING, ("--max-num-queued-tokens",), also=True, chart="batching.maxNumQueuedTokens")
    ] = Field(
        default=defaults.MAX_QUEUED_TOKENS,
        ge=1,
        description="Prompt tokens of the requests that may wait; more are refused.",
    )
    threads: Annotated[int | None, Flag(BATCHING, also=True, chart="threads")] = Field(
        default=None,
        ge=1,
        le=1024,
        description="Threads of this machine that compute; default: one for each CPU that affinity and "
        "control groups allow.",
    )
    cache_dir: Path | None = None
    first_core: int = Field(default=0, ge=0)
    cores: int | None = Field(default=None, ge=1)

    @property
    def lora_slots(self) -> int:
        """The number of LoRA adapters that may be loaded at once; 0 where none is served."""
        if not (self.enable_lora or self.lora_modules or self.lora_dir):
            return 0
        return max(self.max_loras, len(self.lora_modules))

    def without_adapters(self) -> EngineConfig:
        """Returns the configuration of a model that serves no LoRA adapters."""
        return self.model_copy(update={"enable_lora": False, "lora_modules": (), "lora_dir": None})

    @field_validator("lora_modules")
    @classmethod
    def _name_adapters(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        names = [read_lora_module(text).name for text in texts]
        if len({*names}) < len(names):
            raise ValueError("give each adapter a name of its own")
        return texts

    @field_validator("max_loras", "max_lora_rank")
    @classmethod
    def _only_adapters_have_limits(cls, limit: int, info: ValidationInfo) -> int:
        given = info.data
        served = given.get("enable_lora") or given.get("lora_modules") or given.get("lora_dir")
        if limit != cls.model_fields[info.field_name or ""].default and not served:
            raise ValueError("no adapters are served (--enable-lora, --lora-modules or --lora-dir)")
        return limit

    @field_validator("kernels")
    @classmethod
    def _spell_kernels(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            op, _, place = text.partition("=")
            file, _, entry = place.rpartition(":")
            if not (op and file and entry):
                raise ValueError(f"{text}: give OP=FILE:ENTRY, such as rmsnorm=kernels.py:rmsnorm")
        return texts

    @field_validator("speculative_config", mode="before")
    @classmethod
    def _read_speculation(cls, value: object) -> object:
        return read_speculation(value) if isinstance(value, str | dict) else value

    @field_validator("kv_events_config", mode="before")
    @classmethod
    def _read_kv_events_config(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        try:
            read = KVEventsConfig.model_validate_json(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(": ".join([*map(str, first["loc"]), first["msg"]])) from None
        if read.publishes and not info.data.get("prefix_cache"):
            raise ValueError("there is no prefix cache (--no-enable-prefix-caching)")
        return read

    @field_validator("time_scale")
    @classmethod
    def _only_a_paced_clock_has_a_scale(cls, scale: float, info: ValidationInfo) -> float:
        if scale != 1.0 and info.data.get("clock") != "device":
            raise ValueError("only the device clock has a time scale (--clock device)")
        return scale


Config = TypeVar("Config", bound=FrozenModel)


def validated(
    config: type[Config], fields: Mapping[str, object], spell: Callable[[str], str] = str
) -> Config:
    """A config from its fields.  Raises UserError for the first that is wrong, named as `spell` says."""
    try:
        return config.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise UserError(f"{spell(field)}: {first['msg'].removeprefix('Value error, ')}", field) from error
