"""Writes the golden files of tests/data with torch and transformers as the outside reference.

    python -m tests.parity.make_goldens             # tiny checkpoints and their goldens
    python -m tests.parity.make_goldens --smollm2   # those of SmolLM2-135M-Instruct alone (some minutes)

Run it at the root of the repository, in an environment with torch, transformers, accelerate and gguf;
ordinary tests read its output and need none of them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.parity import real
from tests.parity.families import DATA, FAMILIES, VOCAB, TinyFamily

PROMPT_LENGTHS = (1, 5, 17, 40)
NEW_TOKENS = 24
WIDTH = 1.6
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Golden:
    """The reference's outputs for a model. `tokens` are the greedy answers to `prompts`, `leads` each
    answer's smallest lead of the best logit over the second; `logits` are those of `text` at `positions`;
    `perplexity` is over `windows` (None: no windows)."""

    prompts: list[list[int]]
    tokens: list[list[int]]
    leads: list[float]
    text: list[int]
    positions: list[int]
    logits: np.ndarray
    windows: list[list[int]]
    perplexity: float | None


def make_model(family: TinyFamily) -> torch.nn.Module:
    """Returns a model with random weights, wide enough that greedy choices are no near ties, rounded to the
    stored dtype."""
    config = transformers.AutoConfig.from_pretrained(family.path, dtype=torch.float32)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(sum(map(ord, family.name)))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                scaled = noise * (WIDTH / parameter.shape[1] ** 0.5)
            else:
                scaled = 1 + 0.2 * noise if parameter.mean() > 0.5 else 0.3 * noise
            parameter.copy_(scaled.to(dtype_of(family)).float())
    return model


def dtype_of(family: TinyFamily) -> torch.dtype:
    """Returns the dtype in which the checkpoint is stored."""
    config = json.loads((family.path / "config.json").read_text(encoding="utf-8"))
    found: torch.dtype = getattr(torch, config["dtype"])
    return found


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> tuple[list[int], float]:
    """Returns `count` greedy tokens, eos or not, and the smallest lead of a best logit over the second."""
    ids, lead, past = list(prompt), float("inf"), None
    step = torch.tensor([ids])
    for _ in range(count):
        out = model(step, past_key_values=past, use_cache=True)
        best = out.logits[0, -1].float().topk(2).values
        lead = min(lead, float(best[0] - best[1]))
        ids.append(int(out.logits[0, -1].argmax()))
        past, step = out.past_key_values, torch.tensor([ids[-1:]])
    return ids[len(prompt) :], lead


@torch.no_grad()
def measure_perplexity(model: torch.nn.Module, windows: list[list[int]]) -> float:
    """Returns exp of the mean loss of each token after a window's first."""
    losses = []
    for window in windows:
        ids = torch.tensor([window])
        logits = model(ids).logits[0, :-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item())
    return float(np.exp(np.mean(losses)))


@torch.no_grad()
def tiny_golden(family: TinyFamily) -> Golden:
    model = make_model(family)
    random = np.random.default_rng(7)
    prompts = [random.integers(4, VOCAB, n).tolist() for n in PROMPT_LENGTHS]
    tokens, leads = zip(*(greedy(model, prompt, NEW_TOKENS) for prompt in prompts), strict=True)
    logits = model(torch.tensor([prompts[-1]])).logits[0].numpy().astype(np.float32)
    text = prompts[-1]
    return Golden(prompts, list(tokens), list(leads), text, list(range(len(text))), logits, [], None)


@torch.no_grad()
def smollm2_golden(path: Path) -> Golden:
    """Returns the golden of the real model, read by transformers itself from the same GGUF file, in fp32."""
    options = {"gguf_file": path.name, "attn_implementation": "eager", "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), **options).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    prompts = [tokenizer.encode(text) for text in real.prompts()]
    tokens, leads = zip(*(greedy(model, prompt, real.NEW_TOKENS) for prompt in prompts), strict=True)
    ids = tokenizer.encode(real.PERPLEXITY_TEXT.read_text(encoding="utf-8"))[: real.WINDOWS * real.WINDOW]
    windows = [ids[start : start + real.WINDOW] for start in range(0, len(ids), real.WINDOW)]
    positions = list(real.LOGIT_POSITIONS)
    logits = model(torch.tensor([windows[0]])).logits[0][positions].numpy()
    perplexity = measure_perplexity(model, windows)
    return Golden(prompts, list(tokens), list(leads), windows[0], positions, logits, windows, perplexity)


def write_tiny(family: TinyFamily) -> None:
    """Writes the checkpoint with its tokenizer, and golden.json, golden.npz."""
    golden = tiny_golden(family)
    save_checkpoint(family)
    rotary = make_model(family).model.rotary_emb
    np.savez_compressed(
        family.path / "golden.npz",
        logits=golden.logits,
        inv_freq=rotary.inv_freq.numpy().astype(np.float32),
        attention_factor=np.float32(rotary.attention_scaling),
    )
    written = {"prompts": golden.prompts, "tokens": golden.tokens, "lead": round(min(golden.leads), 6)}
    (family.path / "golden.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    print(f"{family.name:10} smallest lead {written['lead']:.4f}")


def save_checkpoint(family: TinyFamily) -> None:
    family.path.mkdir(parents=True, exist_ok=True)
    for old in family.path.glob("model*.safetensors*"):
        old.unlink()
    stored = make_model(family).to(dtype_of(family))
    size = sum(p.nbytes for p in stored.parameters())
    stored.save_pretrained(
        family.path, max_shard_size=size // family.shards + 1 if family.shards > 1 else "1GB"
    )
    for file in family.path.glob("*.safetensors"):
        file.chmod(0o644)
    make_tokenizer().save(str(family.path / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    config["chat_template"] = TEMPLATE
    (family.path / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def make_tokenizer() -> Tokenizer:
    """Returns a byte-level BPE of VOCAB entries, trained on the perplexity text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>")
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(DATA / "perplexity.txt").read_text(encoding="utf-8")], trainer)
    return tokenizer


def own_tokenizer(path: Path) -> Tokenizer:
    """Returns SmolLM2's tokenizer from its tokenizer.json. transformers reads it from the GGUF file with one
    difference: it does not cut digits apart first, which shows where several blanks precede a digit."""
    read = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).backend_tokenizer
    read.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return read


def write_smollm2(path: Path) -> None:
    """Writes golden.json and logits.npz; the logits are stored in fp16."""
    golden = smollm2_golden(path)
    tokenizer = own_tokenizer(path)
    written = {
        "prompts": golden.prompts,
        "tokens": golden.tokens,
        "leads": [round(lead, 6) for lead in golden.leads],
        "perplexity": golden.perplexity,
        "samples": {text: tokenizer.encode(text).ids for text in real.TOKENIZER_SAMPLES},
    }
    real.GOLDEN.mkdir(parents=True, exist_ok=True)
    (real.GOLDEN / "golden.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    np.savez_compressed(real.GOLDEN / "logits.npz", logits=golden.logits.astype(np.float16))
    print(f"smollm2 perplexity {golden.perplexity:.4f}, smallest lead {min(golden.leads):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smollm2", action="store_true", help="the goldens of the real model")
    if parser.parse_args().smollm2:
        write_smollm2(real.model_path())
        return
    for family in FAMILIES:
        write_tiny(family)


if __name__ == "__main__":
    main()
