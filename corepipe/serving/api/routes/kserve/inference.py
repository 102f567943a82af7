"""The Open Inference Protocol (KServe's second) over HTTP: tensors in and out.

Clients send texts, or token ids of texts, or the preprocessed numbers of images; tensors are JSON or binary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from starlette.types import Receive, Scope, Send

from corepipe.answers.values import activated
from corepipe.engine.sampling_parameters import MAX_TOKENS
from corepipe.models.tasks import Images, Task, TaskInfo
from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import VERSION, named_in_path
from corepipe.serving.api.answering.pooled import PooledJob, PooledRequest, PooledResult, PooledRunner, array
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.submission import answer
from corepipe.serving.api.answering.texts import (
    EncodedPrompt,
    EncodingOptions,
    TextPair,
    Truncation,
    check_count,
    check_ids,
    check_total,
    of_pixels,
    read_entries,
    read_pairs,
    too_long,
)
from corepipe.serving.api.bodies.reading import Body, parse
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.http.guard import TENSORS, read_body
from corepipe.serving.api.routes.kserve import tensors
from corepipe.serving.api.routes.kserve.metadata import (
    IDS,
    MASK,
    PIXELS,
    SECOND,
    TEXT,
    TYPES,
    Outcome,
    inputs_of,
    outputs_of,
)
from corepipe.serving.api.routes.kserve.tensors import NamedTensor, TensorInput, TensorOutput
from corepipe.serving.api.routes.route import generating

BINARY = (b"content-type", b"application/octet-stream")


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a whole request; `binary_data_output`: the default of the outputs' `binary_data`."""

    binary_data_output: bool = False
    priority: Annotated[int, Meta(ge=-(2**31), le=MAX_TOKENS)] = 0
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    truncation_side: Literal["left", "right"] = "right"


class OutputParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an output; `binary_data`: whether it follows the JSON as binary data."""

    binary_data: bool | None = None


class RequestedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output that the request names."""

    name: Annotated[str, Meta(max_length=128)]
    parameters: OutputParameters | None = None


class InferRequest(Body, frozen=True, kw_only=True):
    """The body of POST /v2/models/{model}/infer."""

    inputs: Annotated[
        list[TensorInput],
        Meta(
            min_length=1,
            max_length=8,
            description="`text` (and `text_pair`), `input_ids` (with `attention_mask` and `token_type_ids`), "
            "or `pixel_values`",
        ),
    ]
    outputs: Annotated[
        Annotated[list[RequestedOutput], Meta(max_length=8)] | None,
        Meta(description="names of the outputs to return; default: all"),
    ] = None
    id: Annotated[Annotated[str, Meta(max_length=128)] | None, Meta(description="the answer's `id`")] = None
    parameters: Annotated[
        Parameters | None,
        Meta(description="`binary_data_output`, `priority`, `truncate_prompt_tokens`, `truncation_side`"),
    ] = None


class InferAnswer(Strict):
    model_name: str
    model_version: str
    outputs: list[TensorOutput]
    id: str | UnsetType = UNSET


def computed(task: TaskInfo, results: Sequence[PooledResult]) -> dict[str, NamedTensor]:
    """Returns the outputs of a model, by name.  Rows of tokens are padded with zeros and empty labels.
    Raises ApiError as `array`."""
    found = [array(result.output) for result in results]
    if task.task is Task.EMBED:
        return _by_name(NamedTensor("embedding", "FP32", np.concatenate(found)))
    scores = [activated(one, task.activation) for one in found]
    if task.task is Task.SCORE:
        return _by_name(NamedTensor("score", "FP32", np.concatenate(scores)[:, 0]))
    names = np.array(task.labels, object)
    if not task.per_token:
        probs = np.concatenate(scores)
        return _by_name(
            NamedTensor("probs", "FP32", probs), NamedTensor("label", "BYTES", names[probs.argmax(-1)])
        )
    longest = max(len(one) for one in scores)
    padded = np.zeros((len(scores), longest, len(task.labels)), np.float32)
    labels = np.full((len(scores), longest), "", object)
    for at, one in enumerate(scores):
        padded[at, : len(one)] = one
        labels[at, : len(one)] = names[one.argmax(-1)]
    return _by_name(NamedTensor("probs", "FP32", padded), NamedTensor("label", "BYTES", labels))


def _by_name(*outputs: NamedTensor) -> dict[str, NamedTensor]:
    return {one.name: one for one in outputs}


class Infer:
    """The endpoint of inference, as plain ASGI."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival, service = perf_counter(), self._service
        name = service.require_model(named_in_path(scope["path_params"]["model"]))
        body, binary = _split(await read_body(receive), scope)
        request = parse(body, InferRequest)
        service.require_task(Task.EMBED, Task.CLASSIFY, Task.SCORE)
        wanted = self._wanted(request)
        parameters = request.parameters or Parameters()
        prompts = await self._prompts([*tensors.read(request.inputs, binary)], parameters)
        named = PooledRequest(model=name, priority=parameters.priority)
        job = PooledJob.by(scope, named, arrival, "infer", "infer")
        results = await PooledRunner(service, job).results(prompts, receive)
        if results is None:
            return
        size = sum(len(result.output.values) for result in results) // 4
        head, *others = await service.beside(size, lambda: self._written(name, request, wanted, results))
        whole = b"".join([head, *others])
        if any(others):
            await answer(send, whole, BINARY, (TENSORS, b"%d" % len(head)))
        else:
            await answer(send, whole)

    def _wanted(self, request: InferRequest) -> dict[str, bool]:
        """Returns names of outputs, and whether they are binary.  Raises ApiError for an unknown output."""
        everywhere = request.parameters is not None and request.parameters.binary_data_output
        known = [one.name for one in outputs_of(self._service.task)]
        if not request.outputs:
            return dict.fromkeys(known, everywhere)
        wanted: dict[str, bool] = {}
        for at, one in enumerate(request.outputs):
            if one.name not in known:
                message = f"outputs[{at}]: the model has the outputs {', '.join(known)}."
                raise invalid(message, f"outputs[{at}].name")
            said = None if one.parameters is None else one.parameters.binary_data
            wanted[one.name] = everywhere if said is None else said
        return wanted

    async def _prompts(self, sent: Sequence[NamedTensor], parameters: Parameters) -> list[EncodedPrompt]:
        task = self._service.task
        given = {one.name: one for one in sent}
        known = {one.name: one for one in inputs_of(task)}
        for at, one in enumerate(sent):
            fits = one.name in known and one.datatype == known[one.name].datatype
            if not fits or given[one.name] is not one:
                takes = ", ".join(f"{name} ({known[name].datatype})" for name in known)
                message = f"inputs[{at}]: the model takes {takes}, each once."
                raise invalid(message, f"inputs[{at}].name")
        if parameters.truncate_prompt_tokens == 0:
            raise invalid("truncate_prompt_tokens must be at least 1, or -1.", "parameters")
        if task.images is not None:
            return _images(given[PIXELS], task.images, parameters)
        most = self._service.most_tokens
        options = EncodingOptions(most, Truncation.of(parameters, most, 0))
        if (TEXT in given) == (IDS in given):
            raise invalid(f"inputs: send either {TEXT} or {IDS}.", "inputs")
        if IDS in given:
            return self._of_ids(given, most)
        texts = _texts(given[TEXT])
        if not task.pairs:
            return await read_entries(self._service, texts, TEXT, options)
        if SECOND not in given:
            raise invalid(f"inputs: the model reads pairs; send {SECOND}, too.", "inputs")
        seconds = _texts(given[SECOND])
        if len(seconds) != len(texts):
            raise invalid(f"{TEXT} and {SECOND} have not the same shape.", "inputs")
        pairs = [TextPair(str(one), str(two), SECOND) for one, two in zip(texts, seconds, strict=True)]
        return await read_pairs(self._service, pairs, SECOND, options)

    def _of_ids(self, given: Mapping[str, NamedTensor], most: int) -> list[EncodedPrompt]:
        if TEXT in given or SECOND in given:
            raise invalid(f"inputs: send either {TEXT} or {IDS}.", "inputs")
        ids = given[IDS].array
        if ids.ndim != 2 or 0 in ids.shape:
            raise invalid(f"{IDS} must have a shape of [texts, tokens], neither 0.", IDS)
        check_count(len(ids), IDS)
        mask = given[MASK].array if MASK in given else np.ones_like(ids)
        types = given[TYPES].array if TYPES in given else np.zeros_like(ids)
        for name, one in ((MASK, mask), (TYPES, types)):
            if one.shape != ids.shape:
                raise invalid(f"{name} has not the shape of {IDS}, {list(ids.shape)}.", name)
        lengths = mask.sum(1)
        places = np.arange(ids.shape[1])
        if not (np.array_equal(mask, places < lengths[:, None]) and lengths.all()):
            raise invalid(f"{MASK} must be ones, at least one, then zeros: padding goes to the right.", MASK)
        prompts = [
            EncodedPrompt(row[:length].tolist(), _second(kinds[:length]))
            for row, kinds, length in zip(ids, types, lengths.tolist(), strict=True)
        ]
        for prompt in prompts:
            check_ids(prompt.ids, self._service.vocab_size, IDS)
            if len(prompt.ids) > most:
                raise too_long(len(prompt.ids), most, IDS)
        check_total(int(lengths.sum()), IDS)
        return prompts

    def _written(
        self, name: str, request: InferRequest, wanted: Mapping[str, bool], results: Sequence[PooledResult]
    ) -> list[bytes]:
        """Returns the JSON of an answer, then its binary tensors."""
        found = computed(self._service.task, results)
        written = [tensors.write(found[one], binary=binary) for one, binary in wanted.items()]
        fields = {"model_name": name, "model_version": VERSION, "outputs": [one for one, _ in written]}
        if request.id is not None:
            fields["id"] = request.id
        return [msgspec.json.encode(fields), *(data for _, data in written)]


def _images(tensor: NamedTensor, images: Images, parameters: Parameters) -> list[EncodedPrompt]:
    """Returns prompts of images that the client has preprocessed."""
    if parameters.truncate_prompt_tokens is not None:
        raise invalid("truncate_prompt_tokens is for texts; this model reads images.", "parameters")
    pixels = tensor.array
    if pixels.shape[1:] != images.shape or not len(pixels):
        wanted = ", ".join(map(str, images.shape))
        raise invalid(f"{PIXELS} must have a shape of [images, {wanted}], not {list(pixels.shape)}.", PIXELS)
    check_count(len(pixels), PIXELS)
    if not np.isfinite(pixels).all():
        raise invalid(f"{PIXELS} has infinity, or NaN.", PIXELS)
    return [of_pixels(images, one.astype("<f4", copy=False).tobytes()) for one in pixels]


def _second(types: tensors.Array) -> int:
    """Returns where zeros become ones (0: all are zeros).  Raises ApiError for other types."""
    ones = int(types.sum())
    second = types.size - ones if ones else 0
    if not np.array_equal(types, np.arange(types.size) >= second if second else np.zeros_like(types)):
        raise invalid(f"{TYPES} must be zeros, then ones.", TYPES)
    return second


def _texts(tensor: NamedTensor) -> list[str | list[int]]:
    if tensor.array.ndim > 2 or tensor.array.shape[1:] not in ((), (1,)) or not tensor.array.size:
        raise invalid(f"{tensor.name} must have a shape of [texts] or [texts, 1].", tensor.name)
    return list(tensor.array.ravel())


def _split(body: bytes, scope: Scope) -> tuple[bytes, bytes]:
    """Splits a body into its JSON and the binary tensors after it, at the length in a header."""
    given = [value for name, value in scope["headers"] if name == TENSORS]
    if not given:
        return body, b""
    if len(given) > 1 or not (given[0].isdigit() and len(given[0]) < 10 and int(given[0]) <= len(body)):
        raise invalid("Inference-Header-Content-Length is not the length of the body's JSON.")
    return body[: int(given[0])], body[int(given[0]) :]


ROUTE = generating(
    "/v2/models/{model}/infer",
    "Tensors of texts, token ids or images to tensors",
    Infer,
    "JSON or binary; for KServe's and Triton's clients; `/versions/1` may follow the model",
    request=InferRequest,
    example={
        "inputs": [{"name": TEXT, "shape": [2], "datatype": "BYTES", "data": ["a cat sat", "a dog ran"]}]
    },
    answer=InferAnswer,
    failures=(Outcome,),
    others=("application/octet-stream",),
)
