"""Engines that the autoscaler starts and stops, as its file of settings configures them.

Engines started by commands are local processes, or programs that start them elsewhere. Commands are
lists of arguments; no shell is involved. `{port}` in them, and in the URL, is one of the configured
ports. An engine outlives the process that started it.

Engines in Kubernetes are pods of a StatefulSet, scaled by its scale subresource (apps/v1, Scale of
autoscaling/v1): GET .../scale returns `spec.replicas`, and PATCH with a merge patch changes it. The
patch has the resource's version that was read, so that it fails (409) after a concurrent change.
Pods are removed from the highest number down, so an engine is stopped only when all pods above it
may be stopped, too.
"""

import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kairos.capacity.autoscaling import MOST_INSTANCES, ScalingRules
from kairos.core import SetupError
from kairos.host import JsonServer, path_segment, read_toml
from kairos.settings import TlsFiles

_MOST_ARGUMENTS = 1_000
_STOP_S = 60.0
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_BYTES = 64 << 10
_MERGE_PATCH = "application/merge-patch+json"


class EngineCommands(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines that are processes of this machine, or that a program here starts elsewhere."""

    start: list[str]
    url: str  # http://HOST:{port}
    ports: tuple[int, int]  # first and last
    stop: list[str] | None = None  # None: the process is told to end by SIGTERM
    log: str | None = None  # a folder: what each engine says is added to PORT.log

    def check(self) -> None:
        """Raise SetupError if a setting cannot be used."""
        for name, command in (("start", self.start), ("stop", self.stop)):
            if command is not None and not 1 <= len(command) <= _MOST_ARGUMENTS:
                raise SetupError(f"commands.{name}: a program and its arguments, each by itself")
        first, last = self.ports
        if not 1 <= first <= last <= 65_535:
            raise SetupError("commands.ports: the first and the last, from 1 to 65535")
        if "{port}" not in self.url:
            raise SetupError("commands.url: {port} must be in it, as in http://127.0.0.1:{port}")


class KubernetesEngines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A StatefulSet of engines. The account needs get and patch on `statefulsets/scale`."""

    namespace: str
    statefulset: str
    url: str  # of a pod: http://vllm-{ordinal}.vllm.NAMESPACE.svc:8000
    api: str = "https://kubernetes.default.svc"
    token: str = f"{_ACCOUNT}/token"  # read each time, since it is renewed
    ca: str | None = f"{_ACCOUNT}/ca.crt"  # None: an authority of the system


class ScalingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File that `kairos plan-autoscale` reads."""

    pool: ScalingRules = ScalingRules()
    every_s: float = 15.0  # between two observations
    ready_s: float = 900.0  # an engine that does not answer by then has failed
    stop_s: float = 600.0  # after this, an engine that cannot be stopped is left to the operator
    # What the pool is told of each engine: max_num_seqs, kv_tokens, ...
    engine: dict[str, Any] = {}
    commands: EngineCommands | None = None
    kubernetes: KubernetesEngines | None = None


def read_scaling_file(path: Path) -> ScalingFile:
    """Read the file. Raises InvalidFile, SetupError: it is invalid."""
    found = read_toml(path, ScalingFile)
    found.pool.check()
    if found.commands is not None and found.kubernetes is not None:
        raise SetupError(f"{path}: commands or kubernetes: one of both starts the engines")
    for name in ("every_s", "ready_s", "stop_s"):
        if not 1 <= (value := getattr(found, name)) <= 86_400:
            raise SetupError(f"{path}: {name} must be from 1 to 86400; it is {value:g}")
    if found.engine.get("phase") == "prefill":
        raise SetupError(
            f"{path}: engine: of pairs the instances that generate answers are scaled; "
            'give phase = "decode" or "both", or leave it out'
        )
    if found.commands is not None:
        found.commands.check()
    return found


class ScaledEngines(Protocol):
    """Engines by their URLs."""

    def stoppable(self, known: Iterable[str]) -> list[str]:
        """Return the known engines that can be stopped here, in the order of their start."""

    def start(self, known: Iterable[str]) -> str:
        """Start an engine; return its URL. Raises SetupError: it cannot be started."""

    def why_failed(self, url: str) -> str | None:
        """Return why a started engine will not serve; None: it may."""

    def stop(self, url: str) -> None:
        """Stop an engine. Raises SetupError: it cannot be stopped now."""


def engines_of(file: ScalingFile) -> ScaledEngines | None:
    """Return the engines; None: the file configures none. Raises SetupError: they are invalid."""
    if file.commands is not None:
        return CommandEngines(file.commands)
    return None if file.kubernetes is None else StatefulSetEngines(file.kubernetes)


class CommandEngines:
    """Engines started by commands."""

    def __init__(self, commands: EngineCommands) -> None:
        self._commands = commands
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        first, last = commands.ports
        self._ports = {self._filled(commands.url, port): port for port in range(first, last + 1)}

    def stoppable(self, known: Iterable[str]) -> list[str]:
        """Return the known engines that a stop command can stop; without one, no earlier engine."""
        if self._commands.stop is None:
            return []
        there = set(known)
        return [url for url in self._ports if url in there]

    def start(self, known: Iterable[str]) -> str:
        taken = {*known, *self._processes}
        url = next((each for each in self._ports if each not in taken), None)
        if url is None:
            raise SetupError("commands.ports: all are in use; name more of them")
        self._processes[url] = self._run(self._commands.start, self._ports[url])
        return url

    def why_failed(self, url: str) -> str | None:
        process = self._processes.get(url)
        status = None if process is None else process.poll()
        # With a command to stop engines, that which starts them may well have ended.
        if status is None or (not status and self._commands.stop is not None):
            return None
        return f"its process ended with status {status}"

    def stop(self, url: str) -> None:
        process = self._processes.get(url)
        if self._commands.stop is not None:
            ended = self._run(self._commands.stop, self._ports[url])
            try:
                status = ended.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                ended.kill()
                ended.wait()
                raise SetupError(f"commands.stop did not end in {_STOP_S:.0f} s") from None
            if status:
                raise SetupError(f"commands.stop ended with status {status} for {url}")
        elif process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.pop(url, None)

    def _run(self, command: list[str], port: int) -> subprocess.Popen[bytes]:
        """Run a command in a session of its own, so that Ctrl-C here does not reach it."""
        filled = [self._filled(each, port) for each in command]
        log = self._commands.log
        try:
            if log is None:
                return _spawn(filled, subprocess.DEVNULL)
            folder = Path(log)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{port}.log").open("ab") as said:
                return _spawn(filled, said)
        except (OSError, ValueError) as error:
            raise SetupError(f"{filled[0]} cannot be started: {error}") from None

    @staticmethod
    def _filled(text: str, port: int) -> str:
        return text.replace("{port}", str(port))


def _spawn(command: list[str], output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (the operator's own command, as a list of arguments)
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class StatefulSetEngines:
    """Engines by the ordinals of their pods."""

    def __init__(self, settings: KubernetesEngines) -> None:
        """Set up the client. Raises SetupError: the API's URL, or a file, cannot be used."""
        if "{ordinal}" not in settings.url:
            raise SetupError("kubernetes.url: {ordinal} must be in it, the number of a pod")
        is_tls = settings.api.lower().startswith("https://")
        files = TlsFiles(ca=settings.ca if is_tls else None)
        self._server = JsonServer(settings.api, files)
        self._settings = settings
        self._stopped: set[int] = set()  # pods that may be removed once the pods above them are
        self._path = (
            f"/apis/apps/v1/namespaces/{path_segment(settings.namespace)}"
            f"/statefulsets/{path_segment(settings.statefulset)}/scale"
        )

    def stoppable(self, known: Iterable[str]) -> list[str]:
        there = set(known)
        replicas, _ = self._scale()
        return [url for number in range(replicas) if (url := self._url(number)) in there]

    def start(self, known: Iterable[str]) -> str:  # noqa: ARG002  (the next number is the URL)
        replicas, version = self._scale()
        self._set(replicas + 1, version)
        self._stopped.discard(replicas)
        return self._url(replicas)

    def why_failed(self, url: str) -> str | None:  # noqa: ARG002
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
