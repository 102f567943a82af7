# ruff: noqa: PLC0415 -- of the libraries each Python has one

"""A library that makes vectors of texts, for `encoders.py`, which starts it under the Python that has it.

    PYTHON benchmarks/encoder_library.py corepipe|sentence-transformers|onnxruntime MODEL [--onnx FILE]

MODEL: a directory with sentence-transformers' modules.  On standard input come lines of JSON with `texts` and
for how many `seconds` to encode them over and over; each is answered with the `seconds` of each call and the
`vectors` of the last one's first texts.  The first line that is said tells the library's version.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

Encode = Callable[[Sequence[str]], Any]
"""Makes vectors [texts, width] of texts."""

TOLD_VECTORS = 2


def corepipe(model: str, _onnx: str | None) -> Encode:
    from corepipe import LLM

    llm = LLM(model)
    return lambda texts: [output.embedding for output in llm.embed(texts)]


def sentence_transformers(model: str, _onnx: str | None) -> Encode:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model, device="cpu")
    return lambda texts: encoder.encode(list(texts), batch_size=32, show_progress_bar=False)


def onnxruntime(model: str, onnx: str | None) -> Encode:
    """Returns an encoder with mean pooling and unit length, as in the modules of the compared models."""
    import onnxruntime as ort
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))  # noqa: PTH118
    tokenizer.no_truncation()  # which the file may ask for
    tokenizer.enable_padding()
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}

    def encode(texts: Sequence[str]) -> Any:  # noqa: ANN401
        found = tokenizer.encode_batch(list(texts))
        ids = np.array([one.ids for one in found], np.int64)
        mask = np.array([one.attention_mask for one in found], np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = session.run(None, {name: given[name] for name in given if name in wanted})[0]
        if states.ndim == 3:
            weights = mask[..., None].astype(np.float32)
            states = (states * weights).sum(1) / weights.sum(1)
        return states / np.linalg.norm(states, axis=1, keepdims=True)

    return encode


LIBRARIES: dict[str, Callable[[str, str | None], Encode]] = {
    "corepipe": corepipe,
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
}


def timed(encode: Encode, texts: Sequence[str], seconds: float) -> dict[str, Any]:
    """Times calls for so many seconds, at least one, after one that does not count."""
    vectors = encode(texts)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while not took or time.perf_counter() < end:
        start = time.perf_counter()
        vectors = encode(texts)
        took.append(time.perf_counter() - start)
    return {"seconds": took, "vectors": [[float(x) for x in vector] for vector in vectors[:TOLD_VECTORS]]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("model")
    parser.add_argument("--onnx", help="the model's graph, for onnxruntime")
    args = parser.parse_args()
    encode = LIBRARIES[args.library](args.model, args.onnx)
    print(json.dumps({"version": version(args.library)}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(timed(encode, asked["texts"], asked["seconds"])), flush=True)


if __name__ == "__main__":
    main()
