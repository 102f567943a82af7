"""What a server is asked to do: frozen, validated once, unknown keys refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from corepipe.errors import UserError
from corepipe.scheduler import defaults
from corepipe.serving.faults import Fault, parse_faults
from corepipe.serving.keys import digest_of
from corepipe.serving.sizes import read_bytes
from corepipe.serving.speculative import SpeculativeConfig, read_speculation

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
ReplayElse = Literal["refuse", "compute", "record"]
ReplayPace = Literal["none", "recorded"]


_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
)


_ZMQ_ADDRESS = r"^(tcp|ipc)://\S+$"


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KVEventsConfig(_Config):
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


class EngineConfig(_Config):
    """One deployment: a model, a format, and where its parts go.

    None stands for "choose for me"; `corepipe.serving.engine.assembly.assemble` resolves it.  `cores`: the
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


class ServerConfig(_Config):
    """How the HTTP server listens and whom it answers.

    The keys are `api_keys` and those that the `api_key_file` holds when it is read; it always holds some.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    admin_api_keys: tuple[str, ...] = ()
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    max_requests_per_key: int | None = Field(default=None, ge=1)
    max_tokens_per_minute_per_key: int | None = Field(default=None, ge=1)
    allowed_origins: tuple[str, ...] = ()
    insecure: bool = False
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_connections: int = Field(default=4096, ge=1)
    shutdown_timeout: float = Field(default=5.0, ge=0, le=86_400)
    max_queue_seconds: float | None = Field(default=None, gt=0, le=86_400)
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    allow_special_tokens_in_text: bool = False
    strict: bool = False
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    verify: bool = False
    record: Path | None = None
    replay: Path | None = None
    record_redact: Path | None = None
    replay_else: ReplayElse = Field(default="refuse", validate_default=True)
    replay_pace: ReplayPace = Field(default="none", validate_default=True)
    otlp_traces_endpoint: str | None = None
    inject: tuple[Fault, ...] = ()
    inject_with_keys: bool = Field(default=False, validate_default=True)
    fleet: str | None = None
    replicas: int | None = Field(default=None, ge=1, le=64, validate_default=True)
    max_replicas: int | None = Field(default=None, ge=1, le=64)
    slo: str | None = None
    verbose: bool = False

    @property
    def has_api_keys(self) -> bool:
        return _has_keys(self.__dict__)

    @property
    def replays_alone(self) -> bool:
        """Whether nothing is computed, so that no model is loaded."""
        return self.replay is not None and self.replay_else == "refuse"

    @property
    def recorded_into(self) -> tuple[Path | None, str]:
        """The directory of what is recorded, if anything is, and the flag that names it."""
        return (self.replay, "replay") if self.replay_else == "record" else (self.record, "record")

    @field_validator("replicas")
    @classmethod
    def _are_of_a_fleet(cls, count: int | None, info: ValidationInfo) -> int | None:
        if (count is None) != (info.data.get("fleet") is None):
            raise ValueError("goes with --fleet: how many hosts of it are to serve")
        return count

    @field_validator("max_replicas")
    @classmethod
    def _are_no_fewer(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("replicas")
        if most is not None and (least is None or most < least):
            raise ValueError("goes with --fleet and --replicas, and is no less")
        return most

    @field_validator("slo")
    @classmethod
    def _adds_hosts(cls, slo: str | None, info: ValidationInfo) -> str | None:
        if slo is not None and info.data.get("max_replicas") is None:
            raise ValueError("goes with --max-replicas: hosts are added where answers do not meet it")
        return slo

    @field_validator("replay")
    @classmethod
    def _records_or_replays(cls, folder: Path | None, info: ValidationInfo) -> Path | None:
        if folder is not None and info.data.get("record") is not None:
            raise ValueError("--record asks for everything anew; --replay-else record adds what is missing")
        return folder

    @field_validator("record_redact")
    @classmethod
    def _is_of_a_recording(cls, rules: Path | None, info: ValidationInfo) -> Path | None:
        if rules is not None and info.data.get("record") is None and info.data.get("replay") is None:
            raise ValueError("has no effect without --record or --replay")
        return rules

    @field_validator("replay_else", "replay_pace")
    @classmethod
    def _is_of_a_replay(cls, value: str, info: ValidationInfo) -> str:
        if value not in ("refuse", "none") and info.data.get("replay") is None:
            raise ValueError(f"{value} has no effect without --replay")
        return value

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _is_otlp_over_http(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 4317:
            raise ValueError(f"{url}: give the collector's OTLP/HTTP URL, as http://localhost:4318/v1/traces")
        return url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces"

    @field_validator("inject", mode="before")
    @classmethod
    def _read_faults(cls, value: object) -> object:
        return parse_faults(value) if isinstance(value, str) else value

    @field_validator("inject_with_keys")
    @classmethod
    def _users_do_not_meet_faults(cls, forced: bool, info: ValidationInfo) -> bool:
        if info.data.get("inject") and _has_keys(info.data) and not forced:
            raise ValueError("--inject makes requests fail, and API keys mean users: set this if they know")
        return forced

    @field_validator("api_keys", "admin_api_keys")
    @classmethod
    def _keys_are_keys(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        if not all(entries):
            raise ValueError("a key is empty")
        for entry in entries:
            digest_of(entry)
        return entries

    @field_validator("allowed_origins")
    @classmethod
    def _origins_are_what_browsers_send(
        cls, origins: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        for origin in origins:
            if origin == "*" and not _has_keys(info.data):
                raise ValueError("* lets every web page use a server without API keys: name the origins")
            if origin != "*" and not _is_origin(origin):
                raise ValueError(
                    f"{origin!r}: give an origin as browsers send it, such as https://ui.example:8443"
                )
        return origins

    @field_validator("max_requests_per_key", "max_tokens_per_minute_per_key")
    @classmethod
    def _limits_are_for_keys(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and not _has_keys(info.data):
            raise ValueError("there are no keys (--api-key, --api-key-file)")
        return limit


def _has_keys(fields: Mapping[str, Any]) -> bool:
    return any(fields.get("api_keys", ())) or fields.get("api_key_file") is not None


def _is_origin(text: str) -> bool:
    """Whether it is a scheme, a host in lower case, and no path nor the port that the scheme has anyway."""
    found = _ORIGIN.fullmatch(text)
    return found is not None and (found["scheme"], found["port"]) not in (("http", "80"), ("https", "443"))


Config = TypeVar("Config", bound=_Config)


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
