"""Health and metadata of the Open Inference Protocol: whether a model is ready, and its tensors."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.models.directory import FoundModel
from corepipe.models.tasks import Task, TaskInfo
from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import VERSION, Models, named_in_path
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.http.errors import ApiError, wrong_method
from corepipe.serving.api.routes.kserve.tensors import Datatype
from corepipe.serving.api.routes.missing import unsupported_at
from corepipe.serving.api.routes.route import Audience, ForAllModels, Route, for_everybody

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
PIXELS = "pixel_values"
TEXT, SECOND = "text", "text_pair"
EXTENSIONS = ["binary_tensor_data", "model_repository"]


class Outcome(Strict):
    """The error of every request that failed."""

    error: str


class ServerMetadata(Strict):
    name: str
    version: str
    extensions: list[str]


class Live(Strict):
    live: bool


class ServerReady(Strict):
    ready: bool


class ModelReady(Strict):
    name: str
    ready: bool


class TensorMetadata(Strict):
    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(Strict):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


def inputs_of(task: TaskInfo) -> list[TensorMetadata]:
    """Returns the inputs of a model: texts, token ids, or images; -1 is any number."""
    if task.task is Task.GENERATE:
        return []
    if task.images is not None:
        return [TensorMetadata(name=PIXELS, datatype="FP32", shape=[-1, *task.images.shape])]
    texts = [TEXT, SECOND] if task.pairs else [TEXT]
    ids = [IDS, MASK, TYPES] if task.types else [IDS, MASK]
    return [
        *(TensorMetadata(name=name, datatype="BYTES", shape=[-1]) for name in texts),
        *(TensorMetadata(name=name, datatype="INT64", shape=[-1, -1]) for name in ids),
    ]


def outputs_of(task: TaskInfo) -> list[TensorMetadata]:
    """Returns the outputs of a model."""
    rows = [-1, -1] if task.per_token else [-1]
    if task.task is Task.EMBED:
        return [TensorMetadata(name="embedding", datatype="FP32", shape=[-1, task.dimensions])]
    if task.task is Task.SCORE:
        return [TensorMetadata(name="score", datatype="FP32", shape=[-1])]
    if task.task is Task.CLASSIFY:
        return [
            TensorMetadata(name="probs", datatype="FP32", shape=[*rows, len(task.labels)]),
            TensorMetadata(name="label", datatype="BYTES", shape=rows),
        ]
    return []


async def _named(models: Models, request: Request) -> tuple[str, Service | FoundModel]:
    """Returns the name of a model in a path, and what is known of it.  Raises ApiError for a path that only
    begins with a model's name."""
    name, path = named_in_path(request.path_params["model"]), request.scope["path"]
    if not name:
        raise HTTPException(404)
    try:
        return name, await models.described(name)
    except ApiError:
        if said := unsupported_at(path):
            raise ApiError(404, said, code="not_found") from None
        if name.endswith("/infer"):
            raise wrong_method(request.method, path, "POST") from None
        raise


async def _server(models: Models, _: Request) -> Response:
    version = models.facts.version
    return JSONResponse({"name": "corepipe", "version": version, "extensions": EXTENSIONS})


async def _live(_models: Models, _: Request) -> Response:
    return JSONResponse({"live": True})


async def _ready(models: Models, _: Request) -> Response:
    ready = models.accepts
    return JSONResponse({"ready": ready}, 200 if ready else 503)


async def _model_ready(models: Models, request: Request) -> Response:
    name, one = await _named(models, request)
    ready = isinstance(one, FoundModel) or one.state in ("ready", "sleeping")
    return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)


async def _model(models: Models, request: Request) -> Response:
    name, one = await _named(models, request)
    metadata = ModelMetadata(
        name=name,
        versions=[VERSION],
        platform="corepipe",
        inputs=inputs_of(one.task),
        outputs=outputs_of(one.task),
    )
    return Response(msgspec.json.encode(metadata), media_type="application/json")


ROUTES = (
    for_everybody(
        "/v2",
        "The server, by the Open Inference Protocol",
        ForAllModels(_server),
        answer=ServerMetadata,
        failures=(Outcome,),
    ),
    for_everybody(
        "/v2/health/live",
        "Alive",
        ForAllModels(_live),
        audience=Audience.ALL,
        answer=Live,
        failures=(Outcome,),
    ),
    for_everybody(
        "/v2/health/ready",
        "Whether requests are accepted",
        ForAllModels(_ready),
        audience=Audience.ALL,
        answer=ServerReady,
        failures=(Outcome, ServerReady),
    ),
    Route(
        "GET",
        "/v2/models/{model}/ready",
        "Whether a model accepts requests",
        ForAllModels(_model_ready),
        answer=ModelReady,
        failures=(Outcome, ModelReady),
        of_model=True,
    ),
    Route(
        "GET",
        "/v2/models/{model}",
        "The inputs and outputs of a model",
        ForAllModels(_model),
        answer=ModelMetadata,
        failures=(Outcome,),
        of_model=True,
    ),
)
