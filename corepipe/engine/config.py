"""What a server is asked to do: frozen, validated once, unknown keys refused."""

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

from corepipe.engine.sizes import read_bytes
from corepipe.engine.speculative_config import SpeculativeConfig, read_speculation
from corepipe.errors import UserError
from corepipe.scheduler import defaults

Mode = Literal["latency", "throughput", "auto"]
ClockName = Literal["host", "device", "virtual"]
FormatName = Literal["fp32", "bf16", "int8", "int8-weights", "int4-weights", "fp8", "mxfp8", "mxfp4"]
"""The last three are timed, and computed by devices alone: who serves in them is refused."""
BitsName = Literal["fast", "same"]
"""same: tokens and logprobs as on every other CPU; fast: those of the kernels that are the fastest here."""
KVCacheDtypeName = Literal["auto", "int8"]
"""What the host keeps keys and values as; auto: as they are computed."""
TaskName = Literal["auto", "generate", "embed", "classify", "score"]
"""What is made of texts; auto: what the model was made for."""


_ZMQ_ADDRESS = r"^(tcp|ipc)://\S+$"


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KVEventsConfig(FrozenModel):
    """How events of the prefix cache are published; names and defaults are vLLM's.

    endpoint: of the PUB socket, bound where it has a wildcard, else connected to.  replay_endpoint: of the
    ROUTER that repeats the latest `buffer_steps` batches.  hwm: batches that wait for a slow subscriber
    before it misses some.  max_queue_size is without effect: no batch waits for its turn here.
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

    model: str
    task: TaskName = "auto"
    format: FormatName = "int8"
    bits: BitsName = "fast"
    instance: str = "inf2.xlarge"
    lnc: Literal[1, 2] | None = None
    mode: Mode = "auto"
    pipeline: int | None = Field(default=None, ge=1)
    tensor: int | None = Field(default=None, ge=1)
    data: int | None = Field(default=None, ge=1)
    expert: int | None = Field(default=None, ge=1)
    clock: ClockName = "host"
    timing_model: str | None = None
    time_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    profile: str | None = None
    policy: Literal["mixed", "segregated"] | None = None
    max_model_len: int | None = Field(default=None, ge=2)
    max_num_seqs: int = Field(default=defaults.MAX_NUM_SEQS, ge=1, le=1024)
    max_num_batched_tokens: int = Field(default=defaults.MAX_NUM_BATCHED_TOKENS, ge=16, le=16384)
    max_batch_delay: float = Field(default=0.0, ge=0, le=60, allow_inf_nan=False)
    block_size: int = Field(default=defaults.BLOCK_SIZE, ge=16, le=128, multiple_of=16)
    num_blocks: int | None = Field(default=None, ge=1)
    kv_cache_bytes: Annotated[int | None, BeforeValidator(read_bytes)] = Field(default=None, ge=1)
    kv_cache_dtype: KVCacheDtypeName = "auto"
    speculative_config: SpeculativeConfig | None = None
    prefix_cache: bool = True
    kv_events_config: KVEventsConfig | None = Field(default=None, validate_default=True)
    max_queued_requests: int = Field(default=defaults.MAX_QUEUED_REQUESTS, ge=1)
    max_queued_tokens: int = Field(default=defaults.MAX_QUEUED_TOKENS, ge=1)
    threads: int | None = Field(default=None, ge=1)
    cache_dir: Path | None = None
    seed: int = 0
    first_core: int = Field(default=0, ge=0)
    cores: int | None = Field(default=None, ge=1)

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
