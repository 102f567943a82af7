"""Kubernetes objects that run a plan's choice on the real hardware, with vLLM on Neuron.

trn2 and trn3 have vLLM's native plugin (`vllm_native`), inf2 and trn1 NxD Inference (`vllm_nxdi`).  Resources
are the device plugin's (deploy/includes/k8s-neuron-device-plugin.rst).  docs/planning.md lists what is
written.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corepipe.errors import UserError
from corepipe.models.config import ModelConfig
from corepipe.neuron.chips.hardware import Instance
from corepipe.planning.planner import vllm_native, vllm_nxdi
from corepipe.planning.planner.space import Candidate, DeploymentShape, PlannedDeployment

PORT = 8000
"""The default port of vLLM."""

PROBE_SECONDS = 10

MODELS = "/models"
"""Directory of nodes and containers for files that a server does not download itself."""

NXDI_PROFILE, NATIVE_PROFILE = "vllm-neuron", "vllm-neuron-native"
"""The profiles of inf2 and trn1, and of trn2 and trn3."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the node, and its path in the container.

    kind: `Directory` must exist before the pod does, `DirectoryOrCreate` is created.  what: its content.
    """

    name: str
    path: str
    on_node: str
    what: str
    kind: str = "Directory"


@dataclass(frozen=True, slots=True)
class ReplicaServer:
    """The server of one replica: an image, arguments of `vllm serve`, variables, and seconds that it may take
    to start.

    mounts: every directory that an argument or a variable names.
    """

    image: str
    flags: Sequence[str]
    environment: Mapping[str, str]
    startup_seconds: int
    mounts: Sequence[Mount]


def is_native(instance: Instance) -> bool:
    """Tells whether the instance has vLLM's native plugin."""
    return instance.chip.core.version in vllm_native.GENERATIONS


def problem(shape: DeploymentShape, model: ModelConfig) -> str | None:
    """Returns the reason for which vLLM on Neuron cannot run a shape; None: it can."""
    place, instance = shape.placement, shape.device
    if instance.family == "inf1":
        return f"vLLM does not run on {instance.name}; restrict the plan with --instance to inf2 or trn"
    own = vllm_native.problem(shape, model) if is_native(instance) else vllm_nxdi.problem(shape)
    if own is not None:
        return own
    if place.tensor not in instance.tensor_degrees:
        accepted = ", ".join(map(str, instance.tensor_degrees))
        return f"tensor {place.tensor} is not accepted on {instance.family}; it takes {accepted}"
    if place.expert not in (1, place.tensor):
        return f"vLLM on Neuron divides experts among all tensor ranks: plan with expert {place.tensor}"
    return None


def check_runs(shape: DeploymentShape, model: ModelConfig) -> None:
    """Raises UserError for a shape that vLLM on Neuron cannot run."""
    if (why := problem(shape, model)) is not None:
        raise UserError(f"--emit vllm-neuron: {why}", "emit")


def runs(shape: DeploymentShape, model: ModelConfig) -> bool:
    """Tells whether vLLM on Neuron runs the model in this shape."""
    return problem(shape, model) is None


def refusal(candidate: Candidate, model: ModelConfig, prompt: int) -> str | None:
    """Returns the reason for which vLLM on Neuron does not run a candidate as planned, with prompts of up
    to `prompt` tokens; None: it does."""
    shape, native = candidate.shape, is_native(candidate.shape.device)
    if (why := problem(shape, model)) is not None:
        return why
    stack = NATIVE_PROFILE if native else NXDI_PROFILE
    if shape.profile.stack != stack:
        family, planned = shape.device.family, shape.profile.stack
        return f"vLLM on {family} is --profile {stack}, and this was planned with {planned}"
    if candidate.limits.speculative_config is not None:
        return "vLLM on Neuron has no such speculative decoding"
    return unfit(candidate, prompt)


def unfit(candidate: Candidate, prompt: int) -> str | None:
    """Returns the reason for which the stack cannot batch as the candidate does, with prompts of up to
    `prompt` tokens; None: it can."""
    shape, limits = candidate.shape, candidate.limits
    if is_native(shape.device):
        return vllm_native.unfit(limits, shape.placement.tensor)
    return vllm_nxdi.unfit(limits, prompt)


def server(model: str, deployment: PlannedDeployment) -> ReplicaServer:
    """Returns the server of one replica of `model`, a path or a repository."""
    stack = vllm_native if is_native(deployment.candidate.shape.device) else vllm_nxdi
    return ReplicaServer(
        stack.IMAGE,
        stack.flags(model, deployment),
        stack.environment(deployment.candidate.shape),
        stack.STARTUP_SECONDS,
        [*_mounts(model, deployment.candidate.shape)],
    )


def _mounts(model: str, shape: DeploymentShape) -> Iterator[Mount]:
    """Yields the directories that the arguments and variables of a replica name."""
    if Path(model).is_absolute():
        yield Mount("model", model, model, "the model")
    if is_native(shape.device):
        yield Mount(
            "compiled",
            vllm_native.CACHE_PATH,
            f"/var/cache/{_object_name(model)}",
            "compiled graphs, for the next pod there",
            "DirectoryOrCreate",
        )
    elif shape.format.name == vllm_nxdi.QUANTIZED:
        path = vllm_nxdi.QUANTIZED_PATH
        yield Mount(
            "quantized",
            path,
            path,
            "the weights in int8, as NxD Inference's save_quantized_state_dict writes them",
        )


def needed(model: str, deployment: PlannedDeployment) -> list[str]:
    """Returns the directories that each node must have, in words."""
    return [f"each node has {mount.on_node}: {mount.what}" for mount in server(model, deployment).mounts]


def loaded(model: str, shape: DeploymentShape, config: ModelConfig) -> tuple[str, list[str]]:
    """Returns the path or repository that a server loads, and the preparations for it.

    For a repository with tied embeddings it is a directory on the node: NxD Inference may fail on the name of
    one with NotImplementedError (vllm-user-guide-v1.rst, known issues).
    """
    if is_native(shape.device) or not config.tied or Path(model).is_absolute():
        return model, []
    path = f"{MODELS}/{model.rpartition('/')[2]}"
    fetch = f"hf download {model} --local-dir {path}"
    return path, [f"{fetch}: by a repository's name NxD Inference may fail on tied embeddings"]


def undocumented(shape: DeploymentShape, config: ModelConfig) -> str | None:
    """Returns a note that the stack is not documented to support the model; None: it is."""
    if is_native(shape.device) or not vllm_nxdi.MODELS.isdisjoint([config.model_type]):
        return None
    return f"NxD Inference is not documented to have {config.model_type}"


def command(model: str, deployment: PlannedDeployment) -> list[str]:
    """Returns `vllm serve` for one replica of `model`, a path or a repository."""
    return ["vllm", "serve", *server(model, deployment).flags]


def neuron_resource(instance: Instance, cores: int) -> tuple[str, int]:
    """Returns the extended resource that a replica requests: whole devices if cores fill them, else cores."""
    devices, rest = divmod(cores, instance.cores_per_chip)
    return ("aws.amazon.com/neuroncore", cores) if rest else ("aws.amazon.com/neuron", devices)


def vllm_manifests(
    model: str, deployment: PlannedDeployment, config: ModelConfig, notes: Sequence[str]
) -> str:
    """Returns a Deployment with one pod for each replica, and its Service, as YAML; `notes` become comments.

    A data-parallel replica is a vLLM server of its own: an instance holds as many pods as there is room for.
    Raises UserError for a deployment that vLLM on Neuron does not run.
    """
    check_runs(deployment.candidate.shape, config)
    replica, name = server(model, deployment), _object_name(model)
    return "\n".join(
        [
            *(f"# {note}" for note in notes),
            *(f"# {what}" for what in needed(model, deployment)),
            f"# The same without Kubernetes, once for each replica: vllm serve {shlex.join(replica.flags)}",
            *_deployment(name, deployment, replica),
            "---",
            *_service(name),
            "",
        ]
    )


def _deployment(name: str, deployment: PlannedDeployment, replica: ReplicaServer) -> Iterator[str]:
    shape = deployment.candidate.shape
    resource, count = neuron_resource(shape.device, shape.placement.tensor)
    yield f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {deployment.instances * shape.placement.data}
  selector:
    matchLabels:
      app.kubernetes.io/name: {name}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {name}
    spec:
      nodeSelector:
        node.kubernetes.io/instance-type: {shape.instance}
      tolerations:
        - key: aws.amazon.com/neuron
          operator: Exists
          effect: NoSchedule
      containers:
        - name: vllm
          image: {replica.image}
          command: ["vllm", "serve"]
          args:"""
    yield from (f"            - {json.dumps(flag)}" for flag in replica.flags)
    yield "          env:"
    for variable, value in replica.environment.items():
        yield f'            - name: {variable}\n              value: "{value}"'
    yield f"""\
          ports:
            - name: http
              containerPort: {PORT}
          startupProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: {PROBE_SECONDS}
            failureThreshold: {replica.startup_seconds // PROBE_SECONDS}
          readinessProbe:
            httpGet:
              path: /health
              port: http
          resources:
            requests:
              {resource}: {count}
            limits:
              {resource}: {count}"""
    if replica.mounts:
        yield from _volumes(replica.mounts)


def _volumes(mounts: Sequence[Mount]) -> Iterator[str]:
    yield "          volumeMounts:"
    for mount in mounts:
        yield f"            - name: {mount.name}\n              mountPath: {json.dumps(mount.path)}"
    yield "      volumes:"
    for mount in mounts:
        yield f"""\
        - name: {mount.name}
          hostPath:
            path: {json.dumps(mount.on_node)}
            type: {mount.kind}"""


def _service(name: str) -> Iterator[str]:
    yield f"""\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector:
    app.kubernetes.io/name: {name}
  ports:
    - name: http
      port: {PORT}
      targetPort: http"""


def _object_name(model: str) -> str:
    """Returns a name that Kubernetes accepts: lower-case letters, digits, hyphens, at most 63 characters."""
    stem = re.sub(r"[^a-z0-9]+", "-", f"vllm-{model.lower()}").strip("-")
    return stem[:63].strip("-")
