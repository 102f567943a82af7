"""GGUF models in several files, as llama.cpp splits them: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.gguf import GgufFile, GgufTensor

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
"""Metadata keys: the number of files, of this one from 0, and of tensors in all files."""


def open_gguf(path: Path) -> GgufFile:
    """Opens a GGUF file, with all the others where it is one of several.

    Raises UserError as `GgufFile` does, and where one of several files is missing or belongs to another
    model.
    """
    file = GgufFile(path)
    if _integer(file, COUNT) <= 1:
        return file
    return GgufShards([_shard(at, number) for number, at in enumerate(shards(path))])


def shards(path: Path) -> list[Path]:
    """Lists the files of a model, from the name of one of them."""
    found = _SHARD.fullmatch(path.name)
    if found is None:
        return [path]
    count = int(found["count"])
    return [path.with_name(f"{found['stem']}-{at:05}-of-{count:05}.gguf") for at in range(1, count + 1)]


def stem_of(path: Path) -> str:
    """Returns the name of a model from that of one of its files."""
    found = _SHARD.fullmatch(path.name)
    return path.stem if found is None else found["stem"]


def same_model(files: Sequence[Path]) -> bool:
    """Tells whether the files are one file, or files of the same set."""
    return len({tuple(shards(file)) for file in files}) == 1


class GgufShards(GgufFile):
    """Several files as if they were one; the metadata is that of the first."""

    def __init__(self, files: Sequence[GgufFile]) -> None:
        self.path = files[0].path
        self.metadata = files[0].metadata
        self.parts = [part for file in files for part in file.parts]
        self.tensors: dict[str, GgufTensor] = {}
        for file in files:
            for name, tensor in file.tensors.items():
                if name in self.tensors:
                    other = self.tensors[name].file.name
                    raise UserError(f"{file.path}: tensor {shown(name)} is also in {other}")
                self.tensors[name] = tensor
        self._check(len(files))

    def _check(self, count: int) -> None:
        named = len(shards(self.path))
        if _integer(self, COUNT) != named or named != count:
            raise UserError(
                f"{self.path}: is one of {_integer(self, COUNT)} files by its {COUNT}: their names must end "
                f"with -00001-of-{_integer(self, COUNT):05}.gguf and so on"
            )
        told = _integer(self, TENSORS, len(self.tensors))
        if told != len(self.tensors):
            raise UserError(f"{self.path}: {TENSORS} is {told}, its files hold {len(self.tensors)}")


def _shard(path: Path, number: int) -> GgufFile:
    if not path.is_file():
        raise UserError(f"{path}: is missing: a model in several files needs all of them")
    file = GgufFile(path)
    if _integer(file, NUMBER, number) != number:
        raise UserError(f"{path}: {NUMBER} is {_integer(file, NUMBER)}, not {number}: was it renamed?")
    return file


def _integer(file: GgufFile, key: str, otherwise: int = 0) -> int:
    value = file.metadata.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{file.path}: {key} is {shown(value, 40)}, not a number of files or tensors")
    return value
