"""What runs a plan's choice on the real hardware: vLLM on Neuron, as Kubernetes objects.

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

from corepipe.errors import UserError
from corepipe.models.config import ModelConfig
from corepipe.neuron.hardware import Instance
from corepipe.planning.planner import vllm_native, vllm_nxdi
from corepipe.planning.planner.space import Candidate, PlannedDeployment, Shape

PORT = 8000
"""vLLM's own."""

PROBE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Server:
    """One replica's: an image, arguments of `vllm serve`, variables, and seconds that it may take to start.

    cache: directory that outlives the container (None: none).
    """

    image: str
    flags: Sequence[str]
    environment: Mapping[str, str]
    startup_seconds: int
    cache: str | None


def is_native(instance: Instance) -> bool:
    """Whether the instance has vLLM's native plugin."""
    return instance.chip.core.version in vllm_native.GENERATIONS


def check_runs(shape: Shape, model: ModelConfig) -> None:
    """Raises UserError for what vLLM on Neuron has no way to run."""
    if shape.device.family == "inf1":
        problem: str | None = (
            f"vLLM does not run on {shape.device.name}; restrict the plan with --instance to inf2 or trn"
        )
    elif is_native(shape.device):
        problem = vllm_native.problem(shape, model)
    else:
        problem = vllm_nxdi.problem(shape)
    if problem is not None:
        raise UserError(f"--emit vllm-neuron: {problem}", "emit")


def runs(shape: Shape, model: ModelConfig) -> bool:
    """Whether vLLM on Neuron runs it."""
    try:
        check_runs(shape, model)
    except UserError:
        return False
    return True


def unfit(candidate: Candidate, prompt: int) -> str | None:
    """Why it cannot batch as the candidate does, with prompts of up to `prompt` tokens; None: it can."""
    shape, limits = candidate.shape, candidate.limits
    if is_native(shape.device):
        return vllm_native.unfit(limits, shape.placement.tensor)
    return vllm_nxdi.unfit(limits, prompt)


def server(model: str, deployment: PlannedDeployment) -> Server:
    """What runs one replica of `model`, a path or a repository."""
    shape = deployment.candidate.shape
    if is_native(shape.device):
        arguments, variables = vllm_native.flags(model, deployment), vllm_native.environment(shape)
        return Server(
            vllm_native.IMAGE, arguments, variables, vllm_native.STARTUP_SECONDS, vllm_native.CACHE_PATH
        )
    arguments, variables = vllm_nxdi.flags(model, deployment), vllm_nxdi.environment(shape)
    return Server(vllm_nxdi.IMAGE, arguments, variables, vllm_nxdi.STARTUP_SECONDS, None)


def neuron_resource(instance: Instance, cores: int) -> tuple[str, int]:
    """The extended resource that one replica asks for: whole devices where they divide, else cores."""
    devices, rest = divmod(cores, instance.cores_per_chip)
    return ("aws.amazon.com/neuroncore", cores) if rest else ("aws.amazon.com/neuron", devices)


def vllm_manifests(
    model: str, deployment: PlannedDeployment, config: ModelConfig, notes: Sequence[str]
) -> str:
    """A Deployment with one pod for each replica, and its Service, as YAML; `notes` become comments.

    A data-parallel replica is a vLLM server of its own: an instance holds as many pods as there is room for.
    Raises UserError for what vLLM on Neuron does not run.
    """
    check_runs(deployment.candidate.shape, config)
    replica, name = server(model, deployment), _object_name(model)
    return "\n".join(
        [
            *(f"# {note}" for note in notes),
            f"# The same without Kubernetes, once for each replica: vllm serve {shlex.join(replica.flags)}",
            *_deployment(name, deployment, replica),
            "---",
            *_service(name),
            "",
        ]
    )


def _deployment(name: str, deployment: PlannedDeployment, replica: Server) -> Iterator[str]:
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
    if replica.cache is not None:
        yield from _cache(name, replica.cache)


def _cache(name: str, path: str) -> Iterator[str]:
    """A directory of the node for compiled graphs: another pod there finds them."""
    yield f"""\
          volumeMounts:
            - name: compiled
              mountPath: {path}
      volumes:
        - name: compiled
          hostPath:
            path: /var/cache/{name}
            type: DirectoryOrCreate"""


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
    """A name that Kubernetes takes: lower-case letters, digits and hyphens, at most 63 characters."""
    stem = re.sub(r"[^a-z0-9]+", "-", f"vllm-{model.lower()}").strip("-")
    return stem[:63].strip("-")
