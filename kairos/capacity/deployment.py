"""A planned pool as files to deploy: Docker Compose for one machine, or manifests of Kubernetes.

What the plan does not know is left to be filled in: the model as Hugging Face names it, in Compose
by the variable `VLLM_MODEL` (or one for each model), in manifests as CHANGE-ME, and so are images
of engines for devices of other vendors than NVIDIA. Ports are on loopback, nothing runs as root.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import yaml

from kairos import __version__
from kairos.capacity.hardware import Accelerator
from kairos.capacity.hardware_options import HardwareAnswer
from kairos.capacity.hardware_plan import PlannedPool
from kairos.capacity.pool import InstanceKind
from kairos.capacity.resources import ENGINE_CORES, ENGINE_MEMORY_GIB
from kairos.capacity.serving import Phases
from kairos.core import SetupError

Deployment = Literal["compose", "kubernetes"]

_VLLM = "vllm/vllm-openai:v0.26.0"
_PORT, _ADMIN = 8000, 8001
_NAMESPACE = "kairos"
# What Kubernetes calls a device, as vendors' plugins register it.
_RESOURCES = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Intel": "habana.ai/gaudi",
    "Google": "google.com/tpu",
}


class _Engines(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of one kind."""

    name: str
    count: int
    kind: InstanceKind
    vendor: str
    variable: str = "VLLM_MODEL"  # of Compose, with the model

    @property
    def options(self) -> list[str]:
        rates = self.kind.rates
        found = ["--host=0.0.0.0", f"--port={_PORT}", f"--max-num-seqs={rates.max_num_seqs}"]
        if rates.expert_parallel:
            found += [f"--data-parallel-size={rates.devices}", "--enable-expert-parallel"]
        elif (tensor := rates.devices // rates.stages) > 1:
            found.append(f"--tensor-parallel-size={tensor}")
        if rates.stages > 1:
            found.append(f"--pipeline-parallel-size={rates.stages}")
        return [*found, "--enable-prompt-tokens-details"]


def deployment_of(answer: HardwareAnswer, form: Deployment) -> str:
    """Return the YAML that deploys the chosen pool.

    Raises SetupError: the pool cannot be deployed so.
    """
    engines = _engines(answer.plan.chosen, answer.asked.offer.devices)
    if form == "compose":
        return yaml.safe_dump(_compose(engines), sort_keys=False)
    return yaml.safe_dump_all(_manifests(engines), sort_keys=False)


def _engines(planned: PlannedPool, devices: Sequence[Accelerator]) -> list[_Engines]:
    if any(kind.phases is not Phases.BOTH for kind in planned.kinds):
        raise SetupError("pairs cannot be deployed from here yet: plan with --no-pairs")
    vendors = {device.name: device.vendor for device in devices}
    several = len({kind.model for kind in planned.kinds}) > 1
    found = [
        _Engines(
            name=_plain(kind.name, "-"),
            count=planned.pool.counts[kind.name],
            kind=kind,
            vendor=vendors[kind.device],
            variable="VLLM_MODEL" + (f"_{_plain(kind.model, '_').upper()}" if several else ""),
        )
        for kind in planned.kinds
    ]
    if len({each.name for each in found}) < len(found):
        raise SetupError("two kinds of instance differ in signs alone: rename one in the catalogue")
    return found


def _plain(name: str, sign: str) -> str:
    return "".join(each if each.isalnum() else sign for each in name.lower()).strip(sign)


def _compose(engines: Sequence[_Engines]) -> dict[str, Any]:
    services: dict[str, Any] = {}
    first = 0
    for each in engines:
        if each.vendor != "NVIDIA":
            raise SetupError(
                f"{each.name}: Compose gives out devices of NVIDIA alone; --deploy kubernetes"
            )
        for number in range(each.count):
            services[f"{each.name}-{number}"] = _compose_engine(each, first)
            first += each.kind.rates.devices
    urls = [
        f"http://{each.name}-{number}:{_PORT},max_num_seqs={each.kind.rates.max_num_seqs}"
        for each in engines
        for number in range(each.count)
    ]
    services["kairos"] = {
        "image": f"kairos:{__version__}",
        "command": [
            *("serve", "--host=0.0.0.0", f"--port={_PORT}", f"--admin-port={_ADMIN}"),
            *(f"--engine={url}" for url in urls),
        ],
        "restart": "unless-stopped",
        "user": "10001:10001",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ports": [f"127.0.0.1:{_PORT}:{_PORT}"],
        "mem_limit": "2g",
    }
    return {"name": "kairos-pool", "services": services, "volumes": {"models": {}}}


def _compose_engine(engines: _Engines, first_device: int) -> dict[str, Any]:
    ids = [str(first_device + number) for number in range(engines.kind.rates.devices)]
    return {
        "image": _VLLM,
        "command": [
            f"${{{engines.variable}:?the model, as Hugging Face names it}}",
            *engines.options,
        ],
        "restart": "unless-stopped",
        "user": "1000:0",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "environment": {"HF_HOME": "/var/tmp/huggingface", "HF_TOKEN": "${HF_TOKEN:-}"},  # noqa: S108
        "volumes": ["models:/var/tmp"],
        "shm_size": "8g",
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [{"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}]
                }
            }
        },
    }


def _manifests(engines: Sequence[_Engines]) -> Iterator[dict[str, Any]]:
    """Engines, and the settings by which Kairos knows them: for `deploy/kubernetes`."""
    settings = ""
    for each in engines:
        yield _headless(each.name)
        yield _stateful_set(each)
        for number in range(each.count):
            host = f"{each.name}-{number}.{each.name}.{_NAMESPACE}.svc"
            settings += f'[[engine]]\nurl = "http://{host}:{_PORT}"\n'
            settings += f"max_num_seqs = {each.kind.rates.max_num_seqs}\n\n"
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata("kairos-engines"),
        "data": {"engines.toml": settings},
    }


def _metadata(name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "kairos"}
    return {"name": name, "namespace": _NAMESPACE, "labels": labels}


def _headless(name: str) -> dict[str, Any]:
    """Return the headless service, which gives each pod a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": _PORT, "targetPort": "http"}],
        },
    }


def _stateful_set(engines: _Engines) -> dict[str, Any]:
    selector = {"app.kubernetes.io/name": engines.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(engines.name),
        "spec": {
            "serviceName": engines.name,
            "replicas": engines.count,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": _metadata(engines.name)["labels"]},
                "spec": {
                    "automountServiceAccountToken": False,
                    "nodeSelector": {"kairos/device": engines.kind.device},
                    "terminationGracePeriodSeconds": 60,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 1000,
                        "fsGroup": 1000,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [_container(engines)],
                    "volumes": [
                        {"name": "models", "emptyDir": {}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
                    ],
                },
            },
        },
    }


def _container(engines: _Engines) -> dict[str, Any]:
    device = _RESOURCES.get(engines.vendor)
    if device is None:
        known = ", ".join(_RESOURCES)
        raise SetupError(f"{engines.name}: devices of {engines.vendor} are not known; {known} are")
    count = engines.kind.rates.devices
    return {
        "name": "engine",
        "image": _VLLM if engines.vendor == "NVIDIA" else "CHANGE-ME",
        "args": ["CHANGE-ME", *engines.options],
        "env": [{"name": "HF_HOME", "value": "/models"}],
        "ports": [{"name": "http", "containerPort": _PORT}],
        "startupProbe": _probe(period_s=10, failures=180),  # a model is fetched and loaded
        "readinessProbe": _probe(period_s=5, failures=2),
        "livenessProbe": _probe(period_s=10, failures=6),
        "resources": {
            "requests": {"cpu": str(ENGINE_CORES), "memory": f"{ENGINE_MEMORY_GIB}Gi"},
            "limits": {"memory": "64Gi", device: count},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": "/models"},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }


def _probe(*, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
