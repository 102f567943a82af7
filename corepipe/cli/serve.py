"""`corepipe serve`: an OpenAI-compatible server over emulated NeuronCores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from corepipe import signals
from corepipe.cli.flags import options, server_options
from corepipe.cli.flags.settings import config_fields, flag_of, text_of
from corepipe.engine.process.stderr import write_without_waiting
from corepipe.imports import uncollected
from corepipe.models import hub
from corepipe.scheduler import defaults


def serve(
    ctx: typer.Context,
    model: options.Model = None,
    host: server_options.Host = "127.0.0.1",
    port: server_options.Port = 8000,
    api_key: server_options.ApiKeys = None,
    api_key_file: server_options.ApiKeyFile = None,
    max_requests_per_key: server_options.MaxRequestsPerKey = None,
    max_tokens_per_minute_per_key: server_options.MaxTokensPerKey = None,
    admin_host: server_options.AdminHost = "127.0.0.1",
    admin_port: server_options.AdminPort = None,
    admin_api_key: server_options.AdminApiKeys = None,
    metrics_host: server_options.MetricsHost = "127.0.0.1",
    metrics_port: server_options.MetricsPort = None,
    ssl_certfile: server_options.SslCertfile = None,
    ssl_keyfile: server_options.SslKeyfile = None,
    max_connections: server_options.MaxConnections = 4096,
    insecure: server_options.Insecure = False,
    allowed_origin: server_options.AllowedOrigins = None,
    served_model_name: server_options.ServedNames = None,
    also: server_options.Also = None,
    chat_template: server_options.ChatTemplate = None,
    trust_request_chat_template: server_options.TrustRequestTemplate = False,
    allow_special_tokens_in_text: server_options.SpecialTokensInText = False,
    strict: server_options.Strict = False,
    tool_call_parser: server_options.ToolCallParser = "auto",
    reasoning_parser: server_options.ReasoningParser = "auto",
    verify: server_options.Verify = False,
    shutdown_timeout: server_options.ShutdownTimeout = 5.0,
    record: server_options.Record = None,
    record_redact: server_options.RecordRedact = None,
    replay: server_options.Replay = None,
    replay_else: server_options.ReplayElse = server_options.Otherwise.REFUSE,
    replay_pace: server_options.ReplayPace = server_options.Pace.NONE,
    otlp_traces_endpoint: server_options.TracesEndpoint = None,
    inject: server_options.Inject = None,
    inject_with_keys: server_options.InjectWithKeys = False,
    max_queue_seconds: server_options.MaxQueueSeconds = None,
    fleet: server_options.FleetAddress = None,
    replicas: server_options.Replicas = None,
    max_replicas: server_options.MaxReplicas = None,
    slo: server_options.ServedSlo = None,
    verbose: server_options.Verbose = False,
    dtype: options.Format = options.Dtype.INT8,
    bits: options.Bits = options.BitsChoice.FAST,
    max_model_len: options.MaxModelLen = None,
    task: options.TaskOption = options.Task.AUTO,
    seed: options.Seed = 0,
    instance: options.Instance = "inf2.xlarge",
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    expert: options.Expert = None,
    clock: options.Clock = options.ClockChoice.HOST,
    timing_model: options.TimingModel = None,
    time_scale: options.TimeScale = 1.0,
    profile: options.Profile = None,
    max_num_seqs: options.MaxNumSeqs = defaults.MAX_NUM_SEQS,
    max_num_batched_tokens: options.MaxBatchedTokens = defaults.MAX_NUM_BATCHED_TOKENS,
    max_batch_delay: options.MaxBatchDelay = 0.0,
    policy: options.Policy = None,
    block_size: options.BlockSize = defaults.BLOCK_SIZE,
    num_blocks: options.NumBlocks = None,
    kv_cache_memory_bytes: options.KVCacheBytes = None,
    kv_cache_dtype: options.KVCacheDtype = options.CacheDtype.AUTO,
    speculative_config: options.SpeculativeConfig = None,
    enable_prefix_caching: options.PrefixCaching = True,
    kv_events_config: options.KVEvents = None,
    max_num_queued_reqs: options.MaxQueuedReqs = defaults.MAX_QUEUED_REQUESTS,
    max_num_queued_tokens: options.MaxQueuedTokens = defaults.MAX_QUEUED_TOKENS,
    threads: options.Threads = None,
) -> None:
    """Serve MODEL at an OpenAI-compatible endpoint, on emulated NeuronCores.

    Without MODEL it serves SmolLM2-135M-Instruct, which it downloads once (98 MB).
    """
    signals.ignore(signals.ORDERS)  # until there is something to reload, and a state
    write_without_waiting()
    with uncollected():  # heavy: the other commands do without
        from corepipe.cli.flags.also import also_asked  # noqa: PLC0415
        from corepipe.engine.config import EngineConfig, validated  # noqa: PLC0415
        from corepipe.serving.config import ServerConfig  # noqa: PLC0415

    given = _given(ctx.params)
    server = validated(ServerConfig, config_fields(ServerConfig, given), flag_of)
    engine = validated(EngineConfig, config_fields(EngineConfig, given), flag_of)
    others = also_asked(also or (), engine, server)
    if server.replays_alone:
        with uncollected():
            from corepipe.cli.start.replay import replay as answer_again  # noqa: PLC0415 -- a model takes seconds
        answer_again(engine, server)
    else:
        from corepipe.cli.start.starting import starting  # noqa: PLC0415

        with starting([(engine, server), *others]) as start:
            with uncollected():
                from corepipe.cli.start.launch import launch  # noqa: PLC0415 -- half of the time of a start
            launch(start)


def _given(flags: Mapping[str, Any]) -> dict[str, object]:
    """The flags, and what stands for those that were left out."""
    model = hub.DEFAULT_MODEL if flags["model"] is None else flags["model"]
    names = [model]
    if flags["model"] is None and flags["replay"] is not None and flags["replay_else"] == "refuse":
        names = []  # those that are recorded
    return {
        **flags,
        "model": model,
        "served_model_name": flags["served_model_name"] or names,
        "chat_template": text_of(flags["chat_template"], "--chat-template"),
        "api_key": flags["api_key"] or [],
        "admin_api_key": flags["admin_api_key"] or [],
        "allowed_origin": flags["allowed_origin"] or [],
        "inject": flags["inject"] or "",
    }
