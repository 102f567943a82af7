"""Converts tensors of the Open Inference Protocol, in JSON or in binary, to numpy and back.

Binary tensors follow the JSON, in the order in which it names them: numbers are little-endian; an element of
BYTES comes after its length, 4 bytes little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType

from corepipe.serving.api.bodies.values import as_integer
from corepipe.serving.api.http.errors import invalid

Datatype = Literal["BYTES", "INT64", "FP32"]
MAX_DIMENSIONS = 4
Length = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TensorShape = Annotated[list[Length], Meta(min_length=1, max_length=MAX_DIMENSIONS)]
Array = npt.NDArray[Any]
_SIZE = np.dtype("<u4")


class InputParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an input; `binary_data_size`: the bytes of a tensor that follows the JSON."""

    binary_data_size: Annotated[int, Meta(ge=0)] | None = None


class TensorInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of a request: `data` in row-major order, nested or not."""

    name: Annotated[str, Meta(max_length=128)]
    shape: TensorShape
    datatype: Datatype
    parameters: InputParameters | None = None
    data: list[Any] | UnsetType = UNSET


class TensorOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor of an answer."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: InputParameters | None = None
    data: list[Any] | UnsetType = UNSET


class NamedTensor(NamedTuple):
    """A tensor with its name and its datatype."""

    name: str
    datatype: Datatype
    array: Array


def read(inputs: Sequence[TensorInput], binary: bytes) -> Iterator[NamedTensor]:
    """Yields the tensors of a request; texts as arrays of str.  Raises ApiError that names the tensor."""
    at = 0
    for number, one in enumerate(inputs):
        field = f"inputs[{number}]"
        size = None if one.parameters is None else one.parameters.binary_data_size
        if (size is None) == (one.data is UNSET):
            raise invalid(f"{field} must have either data or parameters.binary_data_size.", field)
        if size is None:
            assert one.data is not UNSET
            flat: Sequence[Any] | Array = _checked([*_flat(one.data)], one.datatype, field)
        else:
            if size > len(binary) - at:
                raise invalid(f"{field}: {size} bytes are more than follow the JSON.", field)
            flat = _from_binary(binary[at : at + size], one.datatype, field)
            at += size
        if len(flat) != math.prod(one.shape):
            wants = f"{math.prod(one.shape)} elements; {len(flat)} were sent"
            message = f"{field}: shape {one.shape} has {wants}."
            raise invalid(message, f"{field}.shape")
        yield NamedTensor(one.name, one.datatype, _array(flat, one.datatype, field).reshape(one.shape))
    if at != len(binary):
        raise invalid(f"{len(binary) - at} bytes follow the last tensor.", "inputs")


def write(tensor: NamedTensor, *, binary: bool) -> tuple[TensorOutput, bytes]:
    """Returns the fields of a tensor in the JSON, and its bytes after the JSON."""
    shape = list(tensor.array.shape)
    if not binary:
        return TensorOutput(tensor.name, tensor.datatype, shape, data=tensor.array.ravel().tolist()), b""
    if tensor.datatype == "BYTES":
        data = b"".join(len(one).to_bytes(4, "little") + one for one in map(str.encode, tensor.array.flat))
    else:
        kind = {"INT64": "<i8", "FP32": "<f4"}[tensor.datatype]
        data = tensor.array.astype(kind, copy=False).tobytes()
    return TensorOutput(tensor.name, tensor.datatype, shape, InputParameters(len(data))), data


def _array(flat: Sequence[Any] | Array, datatype: Datatype, field: str) -> Array:
    kind = {"BYTES": object, "INT64": np.int64, "FP32": np.float32}[datatype]
    try:
        with np.errstate(over="ignore"):  # a number too large for fp32 becomes infinity
            return np.array(flat, kind)
    except OverflowError:  # an integer that no float holds
        raise invalid(f"{field}.data: a number is out of range.", f"{field}.data") from None


def _flat(data: Sequence[Any], depth: int = 1) -> Iterator[Any]:
    for one in data:
        if isinstance(one, list) and depth < MAX_DIMENSIONS:
            yield from _flat(one, depth + 1)
        else:
            yield one


def _checked(flat: list[Any], datatype: Datatype, field: str) -> list[Any]:
    if datatype == "INT64":
        flat = [as_integer(one) for one in flat]
    kinds = {"BYTES": (str,), "INT64": (int,), "FP32": (int, float)}[datatype]
    if not all(type(one) in kinds for one in flat):
        raise invalid(f"{field}.data: these are not all of {datatype}.", f"{field}.data", "invalid_type")
    if datatype == "INT64" and flat and not -(2**63) <= min(flat) <= max(flat) < 2**63:
        raise invalid(f"{field}.data: a number is out of range.", f"{field}.data")
    return flat


def _from_binary(data: bytes, datatype: Datatype, field: str) -> Sequence[Any] | Array:
    if datatype == "BYTES":
        try:
            return [text.decode() for text in _elements(data, field)]
        except UnicodeDecodeError:
            raise invalid(f"{field}: a text is not UTF-8.", field) from None
    kind = np.dtype({"INT64": "<i8", "FP32": "<f4"}[datatype])
    if len(data) % kind.itemsize:
        raise invalid(f"{field}: {len(data)} bytes are no whole number of {datatype}.", field)
    return np.frombuffer(data, kind)


def _elements(data: bytes, field: str) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + _SIZE.itemsize
        at = begin + int.from_bytes(data[at:begin], "little")
        if begin > len(data) or at > len(data):
            raise invalid(f"{field}: an element is longer than the tensor.", field)
        yield data[begin:at]
