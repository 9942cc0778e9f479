"""Engines as pods of a StatefulSet, scaled by its scale subresource.

As the API documents it (apps/v1, Scale of autoscaling/v1): GET .../scale returns `spec.replicas`,
and PATCH with a merge patch changes it. The patch has the resource's version that was read, so that
it fails (409) after a concurrent change. Pods are removed from the highest number down, so an
engine is stopped only when all pods above it may be stopped, too.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kairos.capacity.autoscaling import MOST_INSTANCES
from kairos.core import SetupError
from kairos.host import JsonServer, context_of, path_segment
from kairos.settings import TlsFiles

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_BYTES = 64 << 10
_MERGE_PATCH = "application/merge-patch+json"


class KubernetesEngines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A StatefulSet of engines. The account needs get and patch on `statefulsets/scale`."""

    namespace: str
    statefulset: str
    url: str  # of a pod: http://vllm-{ordinal}.vllm.NAMESPACE.svc:8000
    api: str = "https://kubernetes.default.svc"
    token: str = f"{_ACCOUNT}/token"  # read each time, since it is renewed
    ca: str | None = f"{_ACCOUNT}/ca.crt"  # None: an authority of the system


class StatefulSetEngines:
    """Engines by the ordinals of their pods."""

    def __init__(self, settings: KubernetesEngines) -> None:
        """Set up the client. Raises SetupError: the API's URL, or a file, cannot be used."""
        if "{ordinal}" not in settings.url:
            raise SetupError("kubernetes.url: {ordinal} must be in it, the number of a pod")
        is_tls = settings.api.lower().startswith("https://")
        files = TlsFiles(ca=settings.ca if is_tls else None)
        self._server = JsonServer(settings.api, context_of(settings.api, files))
        self._settings = settings
        self._stopped: set[int] = set()  # pods that may be removed once the pods above them are
        self._path = (
            f"/apis/apps/v1/namespaces/{path_segment(settings.namespace)}"
            f"/statefulsets/{path_segment(settings.statefulset)}/scale"
        )

    def adopted(self, known: Iterable[str]) -> list[str]:
        there = set(known)
        replicas, _ = self._scale()
        return [url for number in range(replicas) if (url := self._url(number)) in there]

    def start(self, known: Iterable[str]) -> str:  # noqa: ARG002  (the next number is the URL)
        replicas, version = self._scale()
        self._set(replicas + 1, version)
        self._stopped.discard(replicas)
        return self._url(replicas)

    def failed(self, url: str) -> str | None:  # noqa: ARG002
        """Return None: Kubernetes restarts a failed pod itself."""
        return None

    def stop(self, url: str) -> None:
        replicas, version = self._scale()
        numbers = {self._url(number): number for number in range(replicas)}
        if url in numbers:
            self._stopped.add(numbers[url])
        left = replicas
        while left and left - 1 in self._stopped:
            left -= 1
        if left < replicas:
            self._set(left, version)
            self._stopped = {number for number in self._stopped if number < left}

    def _url(self, ordinal: int) -> str:
        return self._settings.url.replace("{ordinal}", str(ordinal)).rstrip("/")

    def _scale(self) -> tuple[int, str]:
        """Return the number of replicas, and the version of the resource."""
        scale = self._server.ask("GET", self._path, token=self._token())
        try:
            return _replicas(scale), str(scale["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError):
            raise SetupError(
                f"{self._server.url}: {self._path} is not answered as a Scale"
            ) from None

    def _set(self, replicas: int, version: str) -> None:
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        self._server.ask(
            "PATCH", self._path, body=patch, token=self._token(), content_type=_MERGE_PATCH
        )

    def _token(self) -> str:
        path = Path(self._settings.token)
        try:
            with path.open("rb") as file:
                token = file.read(_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"kubernetes.token: {path} cannot be read: {error}") from None
        if not token.isprintable() or not token:
            raise SetupError(f"kubernetes.token: {path} holds no token")
        return token


def _replicas(scale: Any) -> int:
    replicas = scale["spec"].get("replicas", 0)  # the API omits 0
    if not isinstance(replicas, int) or not 0 <= replicas <= MOST_INSTANCES:
        raise ValueError
    return replicas
