"""Reads greedy tokens with logprobs off the Python API, on the kernels of the process: COREPIPE_ISA=portable.

    python -m tests.digest.tokens < asked.json > answered.json

asked: entries by name, {model, format, pipeline, tensor, data, prompts}; answered: the same with `isa` and
`answers`.  A process has one ISA, so that the tests run this module in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from corepipe import LLM, SamplingParams
from corepipe.kernels import native
from tests.digest.forms import Json, canonical
from tests.digest.models import ROOT

ISA = "portable"
NEW_TOKENS = 24
TOP = 3
"""Number of alternatives whose logprobs are kept for each token."""
INSTANCE = "trn1.32xlarge"
MAX_MODEL_LEN = 128


def read(asked: Mapping[str, Json], threads: int = 2, environment: Mapping[str, str] | None = None) -> Json:
    """Computes answers in a process of its own, on portable kernels.  Raises CalledProcessError with its
    stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.digest.tokens", str(threads)],
        input=json.dumps(asked),
        env={**os.environ, **(environment or {}), "COREPIPE_ISA": ISA},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def answer(asked: Json, threads: int) -> Json:
    """Computes one entry in this process."""
    model = ROOT / asked["model"]
    options = {key: asked[key] for key in ("format", "pipeline", "tensor", "data")}
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=TOP)
    with LLM(
        str(model), **options, instance=INSTANCE, max_model_len=MAX_MODEL_LEN, block_size=16, threads=threads
    ) as llm:
        outputs = llm.generate(asked["prompts"], params)
    answers = [
        {
            "tokens": output.token_ids,
            "logprobs": [said.logprob.hex() for said in output.logprobs],
            "top": [[[token, logprob.hex()] for token, logprob in said.top] for said in output.logprobs],
        }
        for output in outputs
    ]
    return {**asked, "isa": native().isa(), "answers": answers}


def main() -> None:
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["COREPIPE_CACHE"] = cache
        answered = {name: answer(entry, int(sys.argv[1])) for name, entry in asked.items()}
    print(canonical(answered))


if __name__ == "__main__":
    main()
