"""Files, engines and keys of a run on a host.

The record of a run in a database names the ones of the host that began it. Anyone who can write to
the database could replace them: a host that resumes the run would then execute a foreign file, or
send its rows and a key to a foreign engine. So such a host takes none of these from the database:
its own command line names them.
"""

from typing import Any

import msgspec

from kairos.core import SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows.run.run_store import RunRecord

_FILES = {
    "flow_path": "--flow",
    "functions_path": "--functions",
    "inputs": "--inputs",
    "out": "--out",
}
_OF_RETRIEVAL = {
    "embedders": "--embedder",
    "rerankers": "--reranker",
    "collections": "--collections",
}


class RunPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Places, as in `RunRecord`; None, or empty: not given."""

    flow_path: str | None = None
    functions_path: str | None = None
    inputs: str | None = None
    out: str | None = None
    engines: tuple[str, ...] = ()
    url: str | None = None
    host: str | None = None
    api_key_env: str | None = None
    retrieval: RetrievalSettings | None = None

    @property
    def names_performers(self) -> bool:
        return bool(self.engines) or self.url is not None or self.host is not None

    def onto(self, record: RunRecord) -> RunRecord:
        """Return the run's record with the places given here.

        The engines are replaced together with their key, or not at all.
        """
        said = {name: getattr(self, name) for name in (*_FILES, "retrieval")}
        changed: dict[str, Any] = {name: each for name, each in said.items() if each is not None}
        if self.names_performers:
            for name in ("engines", "url", "host", "api_key_env"):
                changed[name] = getattr(self, name)
        return msgspec.structs.replace(record, **changed)

    def check_named(self, told: RunRecord) -> None:
        """Check that all places are given that the run of another host needs.

        Raises:
            SetupError: some are missing; the message names their options.
        """
        missing = [
            option
            for name, option in _FILES.items()
            if getattr(told, name) is not None and getattr(self, name) is None
        ]
        asks = bool(told.engines) or told.url is not None or told.host is not None
        if asks and not self.names_performers:
            missing.append("--engine (or --url, or --host)")
        if told.retrieval is not None:
            missing += self._missing_of(told.retrieval)
        if missing:
            raise SetupError(
                f"{told.id} was begun on another host: its files and engines are not read "
                f"from the database, where others may write; give {', '.join(missing)}"
            )

    def _missing_of(self, told: RetrievalSettings) -> list[str]:
        ours = self.retrieval or RetrievalSettings()
        return [
            option
            for name, option in _OF_RETRIEVAL.items()
            if getattr(told, name) and not getattr(ours, name)
        ]


def without_places(told: RunRecord) -> RunRecord:
    """Return another host's record of a run, without the places on that host."""
    return msgspec.structs.replace(
        told,
        **dict.fromkeys((*_FILES, "url", "host", "api_key_env")) | {"out": ""},
        engines=(),
        retrieval=None,
        bus=None,
        results=None,
        written={},  # files that it wrote are not here
    )
