"""`corepipe serve`: an OpenAI-compatible server over emulated NeuronCores."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from corepipe.cli import options
from corepipe.errors import UserError
from corepipe.models import hub
from corepipe.serving.config import EngineConfig, ServerConfig

Config = TypeVar("Config", bound=BaseModel)


def serve(
    model: options.Model = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    api_key: options.ApiKeys = None,
    insecure: options.Insecure = False,
    served_model_name: options.ServedNames = None,
    chat_template: options.ChatTemplate = None,
    dtype: options.Format = options.Dtype.INT8,
    max_model_len: options.MaxModelLen = None,
    seed: options.Seed = 0,
    instance: options.Instance = "inf2.xlarge",
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    clock: options.Clock = options.ClockChoice.HOST,
    max_num_seqs: options.MaxNumSeqs = 32,
    max_num_batched_tokens: options.MaxBatchedTokens = 512,
    policy: options.Policy = options.PolicyChoice.MIXED,
    block_size: options.BlockSize = 32,
    num_blocks: options.NumBlocks = None,
    enable_prefix_caching: options.PrefixCaching = True,
    max_num_queued_reqs: options.MaxQueuedReqs = 1024,
    max_num_queued_tokens: options.MaxQueuedTokens = 1_000_000,
    threads: options.Threads = None,
) -> None:
    """Serve MODEL at an OpenAI-compatible endpoint, on emulated NeuronCores.

    Without MODEL it serves SmolLM2-135M-Instruct, which it downloads once (93 MB).
    """
    chosen = hub.DEFAULT_MODEL if model is None else model
    server = _validated(
        ServerConfig,
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        insecure=insecure,
        served_model_names=tuple(served_model_name or (chosen,)),
        chat_template=_text(chat_template),
    )
    engine = _validated(
        EngineConfig,
        model=chosen,
        format=dtype.value,
        max_model_len=max_model_len,
        seed=seed,
        instance=instance,
        mode=mode.value,
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        clock=clock.value,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        policy=policy.value,
        block_size=block_size,
        num_blocks=num_blocks,
        prefix_cache=enable_prefix_caching,
        max_queued_requests=max_num_queued_reqs,
        max_queued_tokens=max_num_queued_tokens,
        threads=threads,
    )
    from corepipe.cli.launch import launch  # noqa: PLC0415 -- heavy: other commands do without the server

    launch(engine, server)


def _validated(config: type[Config], **fields: object) -> Config:
    """Raises UserError that names the flag at fault."""
    try:
        return config(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise UserError(f"{flag}: {first['msg']}", str(first["loc"][0])) from error


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--chat-template {path}: {error}", "chat_template") from error
