"""What runs a plan's choice on the real hardware: vLLM on Neuron with NxD Inference, as Kubernetes objects.

Names and meanings: the NxD Inference documentation (libraries/nxd-inference/developer_guides/
vllm-user-guide-v1.rst and feature-guide.rst, libraries/nxd-inference/api-guides/api-guide.rst), the plugin
that takes `override_neuron_config` (vllm-project/vllm-neuron, neuronx_distributed_model_loader.py), and the
device plugin's resources (deploy/includes/k8s-neuron-device-plugin.rst).  docs/planning.md lists them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from math import log2

from corepipe.errors import UserError
from corepipe.neuron.hardware import Instance
from corepipe.planning.planner.space import PlannedDeployment, Shape

IMAGE = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.16.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
"""The line of AWS's containers that has NxD Inference and runs on inf2, trn1 and trn2."""

FIRST_BUCKET = 128
GLOBAL_TOPK = 256
PORT = 8000

DTYPES = {"bf16": "bfloat16", "int8-weights": "bfloat16", "fp32": "float32"}
"""Our formats that NxD Inference computes -> vLLM's --dtype."""

QUANTIZED_PATH = "/models/quantized"


def check_runs(shape: Shape) -> None:
    """Raises UserError for what vLLM on Neuron has no way to run."""
    place, instance = shape.placement, shape.device
    if instance.family == "inf1":
        problem = f"vLLM does not run on {instance.name}; restrict the plan with --instance to inf2 or trn"
    elif place.pipeline > 1:
        problem = "NxD Inference cuts by tensor alone; plan without pipelines"
    elif shape.format.name not in DTYPES:
        problem = f"NxD Inference has no {shape.format.name}; use --dtype {' or '.join(DTYPES)}"
    elif place.tensor not in instance.tensor_degrees:
        accepted = ", ".join(map(str, instance.tensor_degrees))
        problem = f"tensor {place.tensor} is not accepted on {instance.family}; it takes {accepted}"
    else:
        return
    raise UserError(f"--emit vllm-neuron: {problem}", "emit")


def runs(shape: Shape) -> bool:
    """Whether vLLM on Neuron runs it."""
    try:
        check_runs(shape)
    except UserError:
        return False
    return True


def buckets(longest: int) -> list[int]:
    """What NxD Inference compiles for by default: powers of two from 128 up, as many as `longest` is nearest
    to, the last of which is `longest` itself (modules/autobucketing.py, generate_buckets)."""
    powers = range(int(log2(FIRST_BUCKET)), round(log2(longest)))
    return [*(1 << power for power in powers), longest]


def neuron_config(deployment: PlannedDeployment) -> dict[str, object]:
    """Keys of NxD Inference's NeuronConfig.  Raises UserError for what it cannot run."""
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    check_runs(shape)
    batch, longest = limits.max_num_seqs, limits.max_model_len
    config: dict[str, object] = {
        "tp_degree": shape.placement.tensor,
        "batch_size": batch,
        "ctx_batch_size": 1,
        "tkg_batch_size": batch,
        "is_continuous_batching": batch > 1,
        "max_context_length": longest,
        "seq_len": longest,
        "enable_bucketing": True,
        "context_encoding_buckets": buckets(longest),
        "token_generation_buckets": buckets(longest),
        "on_device_sampling_config": {"dynamic": True, "deterministic": False, "global_topk": GLOBAL_TOPK},
        "logical_nc_config": shape.device.lnc,
    }
    if shape.format.name == "int8-weights":
        config |= {
            "quantized": True,
            "quantized_checkpoints_path": QUANTIZED_PATH,
            "quantization_dtype": "int8",
            "quantization_type": "per_channel_symmetric",
        }
    return config


def vllm_flags(model: str, deployment: PlannedDeployment) -> list[str]:
    """The arguments of `vllm serve`.

    Without prefix caching a sequence's keys and values lie in one block of max_model_len tokens, which the
    plugin sets itself (vllm_neuron/platform.py), so that there is a block for each sequence.
    """
    shape, limits = deployment.candidate.shape, deployment.candidate.limits
    additional = {"override_neuron_config": neuron_config(deployment)}
    flags = {
        "--dtype": DTYPES[shape.format.name],
        "--tensor-parallel-size": shape.placement.tensor,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-model-len": limits.max_model_len,
        "--num-gpu-blocks-override": limits.max_num_seqs,
        "--port": PORT,
        "--additional-config": json.dumps(additional),
    }
    pairs = (str(part) for pair in flags.items() for part in pair)
    return [model, *pairs, "--no-enable-prefix-caching"]


def neuron_resource(instance: Instance, cores: int) -> tuple[str, int]:
    """The extended resource that one replica asks for: whole devices where they divide, else cores."""
    devices, rest = divmod(cores, instance.cores_per_chip)
    return ("aws.amazon.com/neuroncore", cores) if rest else ("aws.amazon.com/neuron", devices)


def vllm_manifests(model: str, deployment: PlannedDeployment, notes: Sequence[str]) -> str:
    """A PlannedDeployment with one pod for each replica, and its Service, as YAML; `notes` become comments.

    A data-parallel replica is a vLLM server of its own: an instance holds as many pods as there is room for.
    """
    flags = vllm_flags(model, deployment)
    name = _object_name(model)
    return "\n".join(
        [
            *(f"# {note}" for note in notes),
            f"# The same without Kubernetes, once for each replica: vllm serve {shlex.join(flags)}",
            *_deployment(name, deployment, flags),
            "---",
            *_service(name),
            "",
        ]
    )


def _deployment(name: str, deployment: PlannedDeployment, flags: Sequence[str]) -> Iterator[str]:
    shape = deployment.candidate.shape
    resource, count = neuron_resource(shape.device, shape.placement.tensor)
    yield f"""\
apiVersion: apps/v1
kind: PlannedDeployment
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
          image: {IMAGE}
          command: ["vllm", "serve"]
          args:"""
    yield from (f"            - {json.dumps(flag)}" for flag in flags)
    yield f"""\
          env:
            - name: NEURON_RT_NUM_CORES
              value: "{shape.placement.tensor}"
            - name: NEURON_LOGICAL_NC_CONFIG
              value: "{shape.device.lnc}"
          ports:
            - name: http
              containerPort: {PORT}
          readinessProbe:
            httpGet:
              path: /health
              port: http
          resources:
            requests:
              {resource}: {count}
            limits:
              {resource}: {count}"""


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
