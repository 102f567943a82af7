"""Models in the forms that the servers of side_by_side.py take.  Needs torch and transformers; vLLM has both.

    python benchmarks/peer_models.py random SHAPE TOKENIZER OUT   # a bf16 checkpoint
    python benchmarks/peer_models.py gguf FILE OUT                # a GGUF file's weights in that form
    python benchmarks/peer_models.py w8a8 CHECKPOINT OUT          # vLLM's int8, for both of them

SHAPE: neox, phi, olmoe or mamba2.  TOKENIZER and FILE are GGUF files, such as `corepipe pull` fetches.
llama.cpp's tools make Q8_0, by the gguf package:

    convert_hf_to_gguf.py CHECKPOINT --outtype q8_0 --outfile OUT.gguf
    llama-quantize --allow-requantize gemma-3-270m-q4_k_m.gguf OUT.gguf q8_0

The converter wants `rotary_pct` of GPT-NeoX, which transformers 5 drops as it reads a config: with another
model_type in a copy of config.json the converter reads the file itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPTNeoXConfig,
    Mamba2Config,
    OlmoeConfig,
    PhiConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

POSITIONS = 2048

SHAPES: dict[str, PretrainedConfig] = {
    # Pythia 410M and Phi-1.5, as their configs say.
    "neox": GPTNeoXConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=50304,
        max_position_embeddings=POSITIONS,
    ),
    "phi": PhiConfig(
        hidden_size=2048,
        num_hidden_layers=24,
        num_attention_heads=32,
        intermediate_size=8192,
        vocab_size=51200,
        max_position_embeddings=POSITIONS,
    ),
    # 1.3 billion weights, of which a token takes 0.3.
    "olmoe": OlmoeConfig(
        hidden_size=1024,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        num_experts=46,
        num_experts_per_tok=8,
        intermediate_size=512,
        vocab_size=49152,
        max_position_embeddings=POSITIONS,
    ),
    # Mamba2-130M, as its config says.
    "mamba2": Mamba2Config(
        hidden_size=768,
        num_hidden_layers=24,
        num_heads=24,
        head_dim=64,
        n_groups=1,
        state_size=128,
        expand=2,
        conv_kernel=4,
        vocab_size=50288,
        residual_in_fp32=False,
        tie_word_embeddings=True,
    ),
}

OLDER_FIELDS = {
    "neox": {"rotary_pct": 0.25, "rotary_emb_base": 10000},
    "phi": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
}
"""Keys of configs from before transformers 5."""


def read_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def write_whole_characters(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes tokens that are parts of characters, or none of the tokenizer's, the least likely: llama.cpp's
    server drops an answer whose text ends inside a character."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    broken = [token for token, text in enumerate(texts) if "\ufffd" in text or not text]
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head[broken] = 0
        head[len(tokenizer) :] = 0


def random_model(shape: str, file: Path, out: Path) -> None:
    torch.manual_seed(0)
    shape_of, tokenizer = SHAPES[shape], read_tokenizer(file)
    for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(shape_of, field, getattr(tokenizer, field))
    model = AutoModelForCausalLM.from_config(shape_of, dtype=torch.bfloat16)
    write_whole_characters(model, tokenizer)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | OLDER_FIELDS.get(shape, {}), indent=1))


def from_gguf(file: Path, out: Path) -> None:
    """Copies the weights into a new model: one that was read from a GGUF file counts as quantised, and is
    not saved."""
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    fields = read.config.to_dict()
    fields.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(read.config)(**fields), dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.save_pretrained(out)
    read_tokenizer(file).save_pretrained(out)


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [n, k] as int8, and the scale of each of the n."""
    values = weight.float()
    scale = (values.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-10)
    return (values / scale).round().to(torch.int8), scale.bfloat16()


def w8a8(checkpoint: Path, out: Path) -> None:
    """Writes compressed-tensors: a scale for each row of weights and each token; the head stays bf16."""
    shutil.copytree(checkpoint, out, dirs_exist_ok=True)
    tensors = load_file(out / "model.safetensors")
    for name in [n for n, t in tensors.items() if t.dim() == 2 and ".layers." in n]:
        tensors[name], tensors[f"{name}_scale"] = quantized(tensors[name])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    eight_bits = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", "embed_out"],
        "config_groups": {"group_0": group},
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    made = kinds.add_parser("random")
    made.add_argument("shape", choices=SHAPES)
    for command in (made, kinds.add_parser("gguf"), kinds.add_parser("w8a8")):
        command.add_argument("source", type=Path)
        command.add_argument("out", type=Path)
    args = parser.parse_args()
    if args.kind == "random":
        random_model(args.shape, args.source, args.out)
    else:
        {"gguf": from_gguf, "w8a8": w8a8}[args.kind](args.source, args.out)


if __name__ == "__main__":
    main()
