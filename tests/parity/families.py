"""Tiny random checkpoints, one a family: what make_goldens.py writes and compare.py reads back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
TINY = DATA / "tiny"
VOCAB = 320
BASE: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True)
class TinyFamily:
    """A configuration in transformers' fields, and the form in which its checkpoint is stored."""

    name: str
    config_class: str
    changes: dict[str, object] = field(default_factory=dict)
    dtype: str = "bfloat16"
    shards: int = 1

    @property
    def path(self) -> Path:
        return TINY / self.name

    def options(self) -> dict[str, object]:
        return {**BASE, **self.changes}


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES = (
    TinyFamily("llama2", "LlamaConfig", {"num_key_value_heads": 4, "hidden_size": 48}, dtype="float16"),
    TinyFamily("llama3", "LlamaConfig", {"rope_parameters": LLAMA3_ROPE, "eos_token_id": [2, 3]}),
    TinyFamily(
        "smollm2",
        "LlamaConfig",
        {
            "tie_word_embeddings": True,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
        dtype="float32",
    ),
    TinyFamily(
        "tinyllama",
        "LlamaConfig",
        {"num_attention_heads": 8, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
        shards=2,
    ),
    TinyFamily("mistral", "MistralConfig", {"sliding_window": 16, "head_dim": 24}),
    TinyFamily(
        "qwen2",
        "Qwen2Config",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 12,
            "max_window_layers": 1,
            "rope_parameters": YARN_ROPE,
        },
    ),
    TinyFamily(
        "qwen3",
        "Qwen3Config",
        {
            "tie_word_embeddings": True,
            "head_dim": 32,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
        },
    ),
)
