"""Trains a small sentencepiece model such as Gemma's, and writes its pieces and what it makes of texts.

    python -m tests.parity.make_sentencepiece

No space in front, bytes for what is unknown, tokens for runs of spaces and line ends, as Gemma has them.
`--gemma FILE` writes what the tokenizer of Gemma 3 270M makes of the same texts, rebuilt from the GGUF file
that `corepipe pull gemma-3-270m` fetches.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

DATA = Path(__file__).resolve().parents[1] / "data"
HERE = DATA / "sentencepiece"
TEXT = DATA / "perplexity.txt"
RUNS = ["\n", "\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "\t", "<table>"]
CHARACTERS = "abc XYZ   \n\n\n\t\t123's\u00e9\u4f60\U0001f600.,!?\u200b_-<>[]aabb\u0928\u092e\ud55c\u0627"
NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4


def samples() -> list[str]:
    rng = random.Random(11)
    text = TEXT.read_text(encoding="utf-8")
    cuts = [text[at : at + rng.randrange(60)] for at in (rng.randrange(len(text)) for _ in range(40))]
    mixed = ["".join(rng.choices(CHARACTERS, k=rng.randrange(30))) for _ in range(80)]
    plain = [
        "",
        " ",
        "  a",
        "a  b   c",
        "<table>x</table>",
        "\n \n",
        "caf\u00e9 \u2014 na\u00efve",
        "1234567890",
    ]
    code = ["def f(x):\n    return x  # \u00e4\n", "if (a && b) {\n\t\tc->d();\n}\n"]
    return [*plain, *code, *cuts, *mixed]


def train() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.read_text(encoding="utf-8").splitlines()),
        model_writer=model,
        vocab_size=700,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=RUNS,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def rebuilt(file: Path) -> bytes:
    """Returns the model that a GGUF file's metadata was made from."""
    reader = gguf.GGUFReader(file)
    tokens, scores, kinds = (
        reader.get_field(f"tokenizer.ggml.{key}").contents() for key in ("tokens", "scores", "token_type")
    )
    model = sentencepiece_model_pb2.ModelProto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        written = token.replace(" ", "\u2581") if kind == USER_DEFINED else token
        model.pieces.add(piece=written, score=score, type=UNKNOWN if token == "<unk>" else kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = 2, True
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = range(4)
    normalizer.name, normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces = (
        "identity",
        False,
        False,
    )
    return model.SerializeToString()


def write(name: str, content: object) -> None:
    (HERE / name).write_text(json.dumps(content, ensure_ascii=True) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gemma", type=Path)
    arguments = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    data = train() if arguments.gemma is None else rebuilt(arguments.gemma)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    ids = {text: processor.encode(text) for text in samples()}
    if arguments.gemma is not None:
        write("gemma.json", ids)
        return
    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    write("tiny.json", {"pieces": [[p.piece, p.score, p.type] for p in model.pieces], "ids": ids})


if __name__ == "__main__":
    main()
