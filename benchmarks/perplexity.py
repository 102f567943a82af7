"""A model's perplexity in corepipe's formats and in llama.cpp, on the same tokens, and whether they differ.

    llama-perplexity -m MODEL.gguf -f TEXT -c 512 --kl-divergence-base LOGITS
    python benchmarks/perplexity.py MODEL.gguf --logits LOGITS [--format fp32,bf16,int4-weights]

LOGITS has the tokens too: windows, of each of which the second half counts.  Of each format the perplexity
and how far it is from llama.cpp's and from the first format's, with the standard error of that from the
differences of the tokens' losses.  For a model whose tokenizer puts no token before a text.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from kv_cache import CHUNK, losses, pair  # the scripts beside this one
from step import BLOCK

from corepipe.models import hub, registry
from corepipe.neuron.formats import FORMATS

F64 = npt.NDArray[np.float64]
MAGIC = b"_logits_"


class Peer(NamedTuple):
    """Tokens [windows, length], and the losses of the counted ones [windows, length / 2 - 1]."""

    tokens: npt.NDArray[np.int32]
    losses: F64


def read_logits(path: Path) -> Peer:
    """Reads the file that llama-perplexity saved: a header and the tokens, then for each counted token two
    fp32, a scale and the least logarithm of a probability, and the logarithms over the vocabulary as
    multiples of that scale, u16 (llama.cpp, tools/perplexity/perplexity.cpp).  Raises SystemExit for
    another file."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise SystemExit(f"{path}: not what llama-perplexity --kl-divergence-base writes")
        length, vocabulary, windows = np.fromfile(file, np.int32, 3).tolist()
        tokens = np.fromfile(file, np.int32, windows * length).reshape(windows, length)
        start = file.tell()
    words, first = 4 + 2 * ((vocabulary + 1) // 2), length // 2
    counted = length - 1 - first
    saved = np.memmap(path, np.uint16, "r", start, (windows, counted, words))
    heads = np.ascontiguousarray(saved[:, :, :4]).view(np.float32).astype(np.float64)
    scale, least = heads[:, :, 0], heads[:, :, 1]
    wanted = np.take_along_axis(saved[:, :, 4:], tokens[:, first + 1 :, None].astype(np.intp), axis=-1)
    return Peer(tokens, -(least + scale * wanted[:, :, 0]))


def compared(name: str, found: F64, other: F64) -> str:
    moved = (found - other).ravel()
    return f"   {np.expm1(moved.mean()):+.3%} +- {moved.std() / moved.size**0.5:.3%} of {name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--logits", type=Path, required=True)
    parser.add_argument("--format", type=lambda text: text.split(","), default=["fp32", "int4-weights"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    peer = read_logits(args.logits)
    length = peer.tokens.shape[1]
    if length % CHUNK:
        raise SystemExit(f"{args.logits}: windows of {length}: take a multiple of {CHUNK} for -c")
    model = registry.load(hub.resolve(args.model))
    print(f"{'llama.cpp':<13} {np.exp(peer.losses.mean()):.4f}   {peer.losses.size} tokens")
    first: F64 | None = None
    for fmt in args.format:
        executor = pair(model, model.graph(FORMATS[fmt], length), length // BLOCK, args.threads)[0]
        # The last token's loss is of none that follows: it is left out.
        found = np.stack([losses(executor, [*window, window[-1]]) for window in peer.tokens.tolist()])
        found = found[:, length // 2 : -1]
        first = found if first is None else first
        print(f"{fmt:<13} {np.exp(found.mean()):.4f}", end="")
        print(compared("llama.cpp", found, peer.losses) + compared(args.format[0], found, first), flush=True)


if __name__ == "__main__":
    main()
