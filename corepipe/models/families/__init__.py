"""Families of models: a file each, which reads a configuration and builds a Graph.

A family is a module here and a line in `FAMILIES`.  It has `configure` and `build`, and `weights` where its
checkpoints keep weights in another way than the graph (see `weight_map`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "albert": "albert",
        "bamba": "bamba",
        "bert": "bert",
        "bloom": "bloom",
        "camembert": "roberta",
        "cohere": "cohere",
        "cohere2": "cohere2",
        "dbrx": "dbrx",
        "deepseek_v2": "deepseek_v3",
        "deepseek_v3": "deepseek_v3",
        "deit": "deit",
        "distilbert": "distilbert",
        "electra": "electra",
        "falcon": "falcon",
        "gemma": "gemma",
        "gemma2": "gemma2",
        "gemma3": "gemma3",
        "gemma3_text": "gemma3",
        "glm4": "glm4",
        "gpt2": "gpt2",
        "gpt_bigcode": "gpt_bigcode",
        "gpt_neo": "gpt_neo",
        "gpt_neox": "gpt_neox",
        "gpt_oss": "gpt_oss",
        "gptj": "gptj",
        "granite": "granite",
        "granitemoe": "granitemoe",
        "granitemoehybrid": "granitemoehybrid",
        "llama": "llama",
        "llama4": "llama4",
        "llama4_text": "llama4",
        "mamba2": "mamba2",
        "mistral": "mistral",
        "mixtral": "mixtral",
        "modernbert": "modernbert",
        "mpnet": "mpnet",
        "mpt": "mpt",
        "mt5": "t5",
        "olmo": "olmo",
        "olmo2": "olmo2",
        "olmo3": "olmo3",
        "olmoe": "olmoe",
        "opt": "opt",
        "phi": "phi",
        "phi3": "phi3",
        "phimoe": "phimoe",
        "qwen2": "qwen2",
        "qwen2_moe": "qwen2_moe",
        "qwen3": "qwen3",
        "qwen3_moe": "qwen3_moe",
        "resnet": "resnet",
        "roberta": "roberta",
        "smollm3": "smollm3",
        "stablelm": "stablelm",
        "starcoder2": "starcoder2",
        "t5": "t5",
        "unet": "unet",
        "vgg": "vgg",
        "vit": "vit",
        "xlm-roberta": "roberta",
        "yolov4": "yolov4",
    }
)
"""The module that describes each Hugging Face model_type."""
