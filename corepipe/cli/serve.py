"""`corepipe serve`: an OpenAI-compatible server over emulated NeuronCores."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from corepipe.cli import options
from corepipe.cli.common import errors, progress_bar
from corepipe.errors import UserError
from corepipe.models import hub
from corepipe.serving.config import EngineConfig, ServerConfig


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
    server = _validated(
        ServerConfig,
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        insecure=insecure,
        served_model_names=tuple(served_model_name or (model or hub.DEFAULT_MODEL,)),
        chat_template=chat_template.read_text() if chat_template else None,
    )
    engine = _validated(
        EngineConfig,
        model=model or hub.DEFAULT_MODEL,
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
    _run(engine, server)
