"""Client of a running Kairos for autoscalers, by its operators' port."""

from typing import Any, Literal, TypeVar

import msgspec

from kairos.core import Look, Phase, SetupError
from kairos.host import JsonServer, context_of, path_segment
from kairos.settings import TlsFiles

Seen = TypeVar("Seen", bound=msgspec.Struct)


class SeenInstance(msgspec.Struct, frozen=True):
    """Engine of the pool."""

    id: str
    url: str
    state: Literal["in_use", "not_in_use", "draining"]
    running: int
    named: bool  # by the settings
    phase: Phase = "both"
    problem: str | None = None


class SeenWork(msgspec.Struct, frozen=True):
    """Current work of the pool."""

    decides: bool
    waiting: int
    look: Look


class _Instances(msgspec.Struct, frozen=True):
    instances: list[SeenInstance]


class OperatedPool:
    """Process of a pool that decides."""

    def __init__(self, url: str, key: str | None, files: TlsFiles) -> None:
        """Set up the client. Raises SetupError: the URL or a file cannot be used."""
        self._server, self._key = JsonServer(url, context_of(url, files)), key

    def work(self) -> SeenWork:
        """Return the current work.

        Raises SetupError: it cannot be read, or another process decides.
        """
        seen = self._read("/admin/work", SeenWork)
        if not seen.decides:
            raise SetupError(
                f"{self._server.url} does not decide at present: ask the process of the pool that "
                "does (its /admin/status says so)"
            )
        return seen

    def instances(self) -> dict[str, SeenInstance]:
        """Return the instances by URL, without a trailing slash.

        Raises SetupError: they cannot be read.
        """
        found = self._read("/admin/instances", _Instances).instances
        return {each.url.rstrip("/").removesuffix("/v1"): each for each in found}

    def add(self, url: str, engine: dict[str, Any]) -> None:
        """Add an engine. `engine`: its settings other than the URL. Raises SetupError."""
        self._server.ask(
            "POST", "/admin/instances", body={**engine, "url": url}, token=self._key, good=(201,)
        )

    def drain(self, instance_id: str) -> None:
        """Drain an instance. Raises SetupError."""
        path = f"/admin/instances/{path_segment(instance_id)}"
        self._server.ask("DELETE", path, token=self._key, good=(202,))

    def _read(self, path: str, kind: type[Seen]) -> Seen:
        answer = self._server.ask("GET", path, token=self._key)
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError:
            raise SetupError(
                f"{self._server.url} is not the operators' port of a Kairos of this version"
            ) from None
