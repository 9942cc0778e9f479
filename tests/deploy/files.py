"""What `deploy/` says, read as compose and Kubernetes read it."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "docker-compose.yml"
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
EXAMPLES = sorted(DEPLOY.glob("kubernetes/examples/*.yaml"))
KEDA_ENGINES = DEPLOY / "kubernetes" / "optional" / "keda-engines.yaml"
KEDA = DEPLOY / "kubernetes" / "optional" / "keda.yaml"

OURS = "kairos:"  # how the name of our image begins, whatever registry it is in

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def env_file(path):
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(environ=None):
    """The file with its variables filled in."""
    values = environ or {}

    def value(match):
        name, default = match.groups()
        return values.get(name) or default or ""

    return yaml.safe_load(_VARIABLE.sub(value, COMPOSE.read_text()))


def in_profile(services, profile):
    return {
        name: service
        for name, service in services.items()
        if profile in service.get("profiles", [profile])
    }


def documents(*paths):
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def of_kind(kind, *paths):
    return [each for each in documents(*(paths or MANIFESTS)) if each["kind"] == kind]


def containers():
    """Of all deployments: (its name, its pod's spec, the container)."""
    return [
        (deployment["metadata"]["name"], pod, container)
        for deployment in of_kind("Deployment")
        for pod in [deployment["spec"]["template"]["spec"]]
        for container in pod["containers"] + pod.get("initContainers", [])
    ]
