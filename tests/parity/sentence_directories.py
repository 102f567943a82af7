"""Compares directories that sentence-transformers saves with it, live: `make parity-embeddings`.

Every pooling alone, and with a Dense and a Normalize behind it; texts alone, with a prompt, and cut; pairs.
Prints a row for each; exits with 1 where a value differs by more than its bound.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from corepipe.models import hub, registry
from corepipe.models.registry import Model
from corepipe.models.tasks import ScoreActivation
from tests.parity import formula
from tests.parity.checkpoints import BOUND
from tests.parity.encode import Encoder, Text
from tests.parity.live import stored_shapes
from tests.parity.texts import make_texts

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
MOST = 40
PROMPT = "find what resembles this: "
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 72,
    "max_position_embeddings": 64,
}


def base(folder: Path, tokenizer: AutoTokenizer, made: type, **changes: object) -> Path:
    """A small model with a real tokenizer; its weights are wide enough that texts differ."""
    made(BertConfig(vocab_size=len(tokenizer), **SIZES, **changes)).save_pretrained(folder)
    file = folder / "model.safetensors"
    formula.write_safetensors(file, stored_shapes(file))
    tokenizer.save_pretrained(folder)
    return folder


def vectors(model: Model, texts: list[str]) -> np.ndarray:
    """Computes vectors as a server does, with the model's default prompt."""
    task, tokenizer = model.task(), model.tokenizer()
    prompt = task.prompts.get(task.default_prompt or "", "")
    ids = [tokenizer.encode(prompt + text) for text in texts]
    return encoded(model, [Text(tokenizer.cut(one, task.max_tokens, "right", framed=True)) for one in ids])


def encoded(model: Model, texts: list[Text]) -> np.ndarray:
    encoder = Encoder(model, "fp32", model.task())
    try:
        return np.concatenate(encoder.values(texts))
    finally:
        encoder.close()


def told(name: str, found: np.ndarray, wanted: np.ndarray) -> bool:
    """Prints a row."""
    largest = float(np.abs(found - wanted).max() / (wanted.max() - wanted.min()))
    print(f"{name:40} {largest:10.1e}{'' if largest <= BOUND else '  too far'}", flush=True)
    return largest <= BOUND


def compare_vectors(folder: Path, tokenizer: AutoTokenizer, texts: list[str]) -> bool:
    good = True
    trunk = base(folder / "base", tokenizer, BertModel)
    for mode in MODES:
        for further in (False, True):
            modules = [Transformer(str(trunk), max_seq_length=MOST), Pooling(48, mode)]
            modules += [Dense(48, 20), Normalize()] if further else []
            prompts = {"prompts": {"query": PROMPT}, "default_prompt_name": "query"} if further else {}
            theirs = SentenceTransformer(modules=modules, device="cpu", **prompts)
            saved = folder / f"{mode}-{further}"
            theirs.save(str(saved))
            wanted = theirs.encode(texts, show_progress_bar=False)
            name = f"{mode}{', Dense, Normalize, prompt' if further else ''}"
            good &= told(name, vectors(registry.load(saved), texts), wanted)
    return good


def compare_scores(folder: Path, tokenizer: AutoTokenizer, texts: list[str]) -> bool:
    """Compares the scores of pairs, of which the longer text is cut first."""
    trunk = base(folder / "cross", tokenizer, BertForSequenceClassification, num_labels=1)
    theirs = CrossEncoder(str(trunk), device="cpu", max_length=MOST)
    saved = folder / "saved"
    theirs.save_pretrained(str(saved))
    pairs = list(zip(texts, texts[::-1], strict=True))
    wanted = theirs.predict(pairs, show_progress_bar=False)
    model = registry.load(saved)
    task, own = model.task(), model.tokenizer()
    read = [Text(*own.pair(one, other, most=task.max_tokens)) for one, other in pairs]
    logits = encoded(model, read)[:, 0]
    return (
        told("a cross-encoder", 1 / (1 + np.exp(-logits)), wanted)
        and task.activation is ScoreActivation.SIGMOID
    )


def main() -> None:
    path = hub.resolve("all-minilm-l6-v2")
    texts = make_texts(registry.load(path).tokenizer(), [1, 2, 9, 30, 38, 39, 60, 100])
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    with tempfile.TemporaryDirectory() as folder:
        good = compare_vectors(Path(folder), tokenizer, texts)
        good &= compare_scores(Path(folder), tokenizer, texts)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
