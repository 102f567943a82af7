"""Compares all-MiniLM-L6-v2 with sentence-transformers, live: `make parity-embeddings`.

    python -m tests.parity.embeddings              # 500 texts of 1 to 256 tokens, and 50 that are cut
    python -m tests.parity.embeddings --write      # writes what the tests compare with

Prints a row for each format: cosines with sentence-transformers in fp32, and the rank correlation of the
similarities of 10,000 pairs.  Exits with 1 where one is outside its bound.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from sentence_transformers import SentenceTransformer

from corepipe.models import hub, registry
from tests.parity.texts import LENGTHS, LONG_LENGTHS, make_texts
from tests.parity.vectors import BOUNDS, KEPT, NAME, STORED, embed, judge


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep vectors of some texts for the tests")
    write = parser.parse_args().write
    path = hub.resolve(NAME)
    model = registry.load(path)
    texts = make_texts(model.tokenizer(), [*LENGTHS, *LONG_LENGTHS])
    reference = SentenceTransformer(str(path), device="cpu", local_files_only=True)
    wanted = reference.encode(texts, batch_size=32, show_progress_bar=False)
    if write:
        np.savez_compressed(STORED, vectors=wanted[::KEPT].astype(np.float16))
        return
    good = [judge(fmt, embed(model, fmt, texts), wanted) for fmt in BOUNDS]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
