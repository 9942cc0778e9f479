"""Settings of retrieval: engines that embed and rerank, and collections."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from kairos.core import SetupError
from kairos.settings.engines import is_http_url

_MOST_ENGINES = 64  # of a sort
_HELD_MB = 1_024  # in records of older runs, with processors or without
_OPTION = re.compile(r"api_key_env=(\w{1,128})", re.ASCII)
POSTGRES_URL = re.compile(
    r"postgres(?:ql)?://(?:[\w.-]{1,63}@)?[\w.:\[\]-]{0,255}/[\w.-]{1,63}", re.ASCII
)
_ENGINE_FORM = "http://HOST:PORT[,api_key_env=VARIABLE]"


class ProcessorEngine(msgspec.Struct, frozen=True):
    """An engine that embeds or reranks."""

    base_url: str  # with /v1
    api_key_env: str | None = None

    @property
    def id(self) -> str:
        """Name in messages: `host:port`."""
        return urlsplit(self.base_url).netloc


class RetrievalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for operators of flows that embed, rank and search.

    An engine is `http://HOST:PORT[,api_key_env=VARIABLE]`, with or without `/v1`.
    """

    embedders: tuple[str, ...] = ()  # serve /v1/embeddings: vLLM, llama.cpp and others
    rerankers: tuple[str, ...] = ()  # serve /v1/rerank
    # Where collections are kept: a directory of this host, or postgresql://[USER@]HOST[:PORT]/NAME
    # of a database with pgvector. None: flows may use collections of a row's own alone.
    collections: str | None = None
    processors: tuple[str, ...] = ()  # removed, and refused: name embedders and so on themselves
    hold_mb: int = _HELD_MB  # removed, and refused: partitions on Ray keep values as Ray's objects

    def __post_init__(self) -> None:
        for name, default in (("processors", ()), ("hold_mb", _HELD_MB)):
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name} was of processors as services of their own, which were removed: name "
                    "embedders, rerankers and collections, on any host; `kairos run --on "
                    "ray://HEAD:PORT` makes each an actor for all partitions of a run"
                )
        for name in ("embedders", "rerankers"):
            engines = [parse_engine_of(name, text) for text in getattr(self, name)]
            if len(engines) > _MOST_ENGINES:
                raise ValueError(f"{name} are {len(engines)}: at most {_MOST_ENGINES}")
            if len({each.base_url for each in engines}) < len(engines):
                raise ValueError(f"{name} has an engine twice")
        if self.collections is not None:
            _check_collections(self.collections)

    @property
    def embedding_engines(self) -> list[ProcessorEngine]:
        return [parse_engine_of("embedders", text) for text in self.embedders]

    @property
    def ranking_engines(self) -> list[ProcessorEngine]:
        return [parse_engine_of("rerankers", text) for text in self.rerankers]

    def check_keys(self, environ: Mapping[str, str]) -> None:
        """Check that the keys of engines are in the environment.

        Raises SetupError: A variable is not set.
        """
        for engine in (*self.embedding_engines, *self.ranking_engines):
            if engine.api_key_env is not None and not environ.get(engine.api_key_env):
                raise SetupError(f"{engine.id}: the variable {engine.api_key_env} is not set")


def parse_engine_of(name: str, text: str) -> ProcessorEngine:
    """Parse an engine. `name` is the setting's name in messages.

    Raises ValueError: The text has another form.
    """
    url, *options = text.split(",")
    read = [_OPTION.fullmatch(option) for option in options]
    if not is_http_url(url) or "@" in url or len(options) > 1 or None in read:
        # Not what it says: what stands before an @ can be a password.
        raise ValueError(f"{name}: write {_ENGINE_FORM}, and no password in the URL")
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    return ProcessorEngine(base_url, read[0][1] if read and read[0] else None)


def is_postgres(collections: str) -> bool:
    return collections.startswith(("postgresql:", "postgres:"))


def _check_collections(collections: str) -> None:
    if not collections or "\0" in collections:
        raise ValueError("collections is empty: name a directory, or a database")
    if is_postgres(collections) and not POSTGRES_URL.fullmatch(collections):
        raise ValueError(
            "collections: write postgresql://[USER@]HOST[:PORT]/NAME. A password goes "
            "into PGPASSWORD or ~/.pgpass, what TLS needs into PGSSLMODE and PGSSLROOTCERT"
        )
    if not is_postgres(collections) and "://" in collections:
        raise ValueError("collections: write a directory, or postgresql://HOST/NAME")
