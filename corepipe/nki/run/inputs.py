"""Inputs of kernels: made of shapes, or returned by a function of the user's."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from corepipe.errors import UserError, shown
from corepipe.nki.core.buffers import Array
from corepipe.nki.run.loading import function_of
from corepipe.nki.run.report import dtype_named

DEFAULT_FUNCTION = "get_inputs"

EXAMPLE = "128x512:float32,128x512:bfloat16,eps=1e-5"

SHAPE = re.compile(r"(\d+(?:x\d+)*):(\w+)|(\d+(?:x\d+)+)")

LARGEST_INTEGER = 100
"""Random integers are below."""


@dataclass(frozen=True, slots=True)
class KernelInputs:
    """The arguments of a kernel, by position and by name."""

    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def named(self, parameters: Sequence[Parameter]) -> dict[str, Any]:
        """Returns all arguments by the names of the parameters that take them."""
        names = [one.name for one in parameters if one.kind is not Parameter.KEYWORD_ONLY]
        names += [f"argument {i}" for i in range(len(names) + 1, len(self.arguments) + 1)]
        return {**dict(zip(names, self.arguments, strict=False)), **self.keywords}

    def digest(self) -> str:
        """Returns a hash: inputs with the same one are the same."""
        found = hashlib.blake2b(digest_size=16)
        for name, value in (*enumerate(self.arguments), *sorted(self.keywords.items())):
            if isinstance(value, np.ndarray):
                found.update(f"{name} {value.shape} {value.dtype}".encode())
                found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
            else:
                found.update(f"{name} {value!r}".encode())
        return found.hexdigest()


def is_function(text: str) -> bool:
    """Tells whether inputs are given as FILE.py:FUNCTION and not as shapes."""
    return ".py:" in text or text.endswith(".py")


def of_shapes(text: str) -> KernelInputs:
    """Returns seeded random arrays and scalars such as "128x512:float32,128:int32,eps=1e-5".

    Floats are standard normal.  Raises UserError for what is neither a shape nor a number.
    """
    generator = np.random.default_rng(0)
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, given = part.strip().rpartition("=")
        value = _value(given, generator)
        if equals:
            keywords[name] = value
        elif keywords:
            raise UserError(f"--inputs {shown(text)}: {given} stands after a named argument", "inputs")
        else:
            arguments.append(value)
    return KernelInputs(arguments, keywords)


def _value(text: str, generator: np.random.Generator) -> Any:
    if found := SHAPE.fullmatch(text):
        shape = tuple(map(int, (found[1] or found[3]).split("x")))
        return _random(shape, _dtype(found[2] or "float32"), generator)
    if text in {"True", "False"}:
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise UserError(
        f"--inputs: {shown(text)} is neither a shape with its type nor a number; give them as {EXAMPLE}, "
        "or a function as FILE.py:FUNCTION",
        "inputs",
    )


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return dtype_named(name)
    except TypeError as error:
        raise UserError(
            f"--inputs: there is no type {shown(name)}; give one as {EXAMPLE}", "inputs"
        ) from error


def _random(shape: tuple[int, ...], dtype: np.dtype[Any], generator: np.random.Generator) -> Array:
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return generator.integers(0, LARGEST_INTEGER, shape).astype(dtype)
    return generator.standard_normal(shape, np.float32).astype(dtype)


def of_function(reference: str) -> KernelInputs:
    """Returns what FILE.py:FUNCTION returns; without :FUNCTION, its get_inputs."""
    if reference.endswith(".py"):
        reference = f"{reference}:{DEFAULT_FUNCTION}"
    return called(function_of(reference, "--inputs"), f"--inputs {reference}")


def called(function: Any, where: str) -> KernelInputs:
    """Returns the arguments that a function makes, with the seeds of numpy and random set to 0.

    A sequence has them by position, a dict by name; a dict at the end of a tuple has the keywords.
    """
    np.random.seed(0)
    random.seed(0)
    found = function()
    if isinstance(found, dict):
        return KernelInputs((), found)
    if isinstance(found, tuple) and found and isinstance(found[-1], dict):
        return KernelInputs(found[:-1], found[-1])
    if isinstance(found, tuple | list):
        return KernelInputs(found)
    if isinstance(found, np.ndarray):
        return KernelInputs((found,))
    raise UserError(
        f"{where}: returns {type(found).__name__}; it must return arrays as a tuple, or as a dict by the "
        "names of the kernel's parameters"
    )


def taken_by(parameters: Sequence[Parameter], inputs: KernelInputs, kernel: str) -> None:
    """Raises UserError where a kernel with these parameters does not take these inputs."""
    try:
        if parameters:
            Signature(parameters).bind(*inputs.arguments, **inputs.keywords)
    except TypeError as error:
        raise UserError(f"--inputs: {kernel}({spelled(parameters)}): {error}", "inputs") from error


def spelled(parameters: Sequence[Parameter]) -> str:
    """Returns parameters as a function's definition has them, without their annotations."""
    return ", ".join(str(one.replace(annotation=Parameter.empty)) for one in parameters)
