"""Processors of flows in this process: engines, and collections of rows and of tenants."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from kairos.core import InvalidRequest, SetupError
from kairos.proxy import headers_with
from kairos.settings import ProcessorEngine, RetrievalSettings, is_postgres
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import Embedding, Rerank
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.execute.batching import Query
from kairos.workflows.execute.commands import DropHeld, RunProcessor
from kairos.workflows.retrieve import asked_engine
from kairos.workflows.retrieve.asked_engine import AskedEngine
from kairos.workflows.retrieve.collections import (
    DEFAULT_TENANT,
    BoundedCollections,
    Collections,
    CollectionTurns,
)
from kairos.workflows.retrieve.engine_pool import Ask, EngineGroup, Item, Result
from kairos.workflows.retrieve.lance_collections import LanceCollections
from kairos.workflows.retrieve.postgres_collections import PostgresCollections
from kairos.workflows.retrieve.vectors import Scored, best_of, matrix_of, search
from kairos.workflows.retrieve.worked import Note, noted

_CONNECT_S, _ANSWER_S = 10, 300
_COLLECTIONS = "collections"  # name of the processor that keeps collections: there is one


class ProcessorService:
    """Processors shared by all flows of this process, so that engines' batches mix them."""

    def __init__(
        self,
        embedders: EngineGroup[str, str] | None,
        rankers: EngineGroup[asked_engine.Pair, float] | None,
        collections: BoundedCollections | None,
        note: Note,
    ) -> None:
        """Take the engines and the store of collections.

        `note`: called for each operation on collections. The engine groups report their own
        batches.
        """
        self.note, self.turns = note, CollectionTurns()
        self._embedders, self._rankers, self._collections = embedders, rankers, collections
        self.keeps_collections = collections is not None
        groups = {"embed": embedders, "rerank": rankers}
        # By kind of operator, the models of its engines; no entry without engines.
        self.models = {kind: each.models for kind, each in groups.items() if each is not None}

    @property
    def waits_for(self) -> list[str]:
        """Return why engines do nothing for waiting items."""
        groups = (self._embedders, self._rankers)
        return [said for each in groups if each is not None for said in each.waits_for]

    def of(self, *, began_at: int = 0, tenant: str = DEFAULT_TENANT) -> "FlowProcessors":
        """Return processors for a flow of a tenant.

        Waiting work that began earlier is done first.
        """
        return FlowProcessors(self, began_at, tenant)

    @property
    def embedders(self) -> EngineGroup[str, str]:
        assert self._embedders is not None, "a flow that embeds has an embedder"
        return self._embedders

    @property
    def rankers(self) -> EngineGroup[asked_engine.Pair, float]:
        assert self._rankers is not None, "a flow that ranks has a ranker"
        return self._rankers

    @property
    def collections(self) -> BoundedCollections:
        assert self._collections is not None, "a flow that names a collection has a place for it"
        return self._collections


class FlowProcessors:
    """Processors for one flow, or one run of it; all values are returned to the caller."""

    def __init__(self, service: ProcessorService, began_at: int, tenant: str) -> None:
        self._service, self._began_at, self._tenant = service, began_at, tenant
        self.models: Mapping[str, Sequence[str]] = service.models
        self.keeps_collections = service.keeps_collections

    @property
    def waits_for(self) -> Sequence[str]:
        return self._service.waits_for

    async def run(self, command: RunProcessor) -> object:
        """Carry out a command and return its value (`workflows/compile/retrieval.py`).

        Raises:
            InvalidRequest: it cannot be done; a retry makes no sense.
            KairosError: it was not done; a retry may succeed.
        """
        asked = cast("Mapping[str, Any]", command.arguments)
        match command.kind:
            case "embed":
                return await self._embed(command, asked)
            case "ingest":
                async with self._turn(command, len(_listed(asked["texts"]))):
                    return await self._ingest(asked)
            case "search":
                async with self._turn(command, len(_listed(asked["vectors"]))):
                    return await self._search(asked)
            case "rerank":
                return await self._rank(command, asked)

    def drop_held(self, command: DropHeld) -> None:
        """Do nothing: no values stay here."""

    def check_models(self, plan: Plan) -> None:
        """Raise SetupError if an operator names a model that no engine serves."""
        for operator in every_operator(plan.declaration.operators):
            params = operator.params
            if isinstance(params, Embedding | Rerank) and params.model:
                is_embedding = isinstance(params, Embedding)
                group = self._service.embedders if is_embedding else self._service.rankers
                try:
                    group.check(params.model)
                except InvalidRequest as error:
                    raise SetupError(f"operator '{operator.name}': {error}") from None

    def _turn(self, command: RunProcessor, items: int) -> AbstractAsyncContextManager[None]:
        turns = self._service.turns
        return turns.turn(self._tenant, self._query(command), command.depth, items)

    def _query(self, command: RunProcessor) -> Query:
        return self._began_at, command.stage, command.row

    async def _embed(self, command: RunProcessor, asked: Mapping[str, Any]) -> str | list[str]:
        texts, query = asked["texts"], self._query(command)
        pool = self._service.embedders.pool(command.model or None, asked["batch"])
        vectors = await pool.results(query, command.depth, _listed(texts), self._tenant)
        return vectors[0] if isinstance(texts, str) else vectors

    async def _ingest(self, asked: Mapping[str, Any]) -> object:
        texts, vectors = _listed(asked["texts"]), _listed(asked["vectors"])
        name = asked.get("collection")
        if name is None:
            return {"texts": texts, "vectors": vectors}
        if texts:
            matrix = await asyncio.to_thread(matrix_of, vectors)
            with noted(self._service.note, "ingest", _COLLECTIONS, len(texts)):
                await self._service.collections.put(self._tenant, name, texts, matrix)
        return {"collection": name, "count": len(texts)}

    async def _search(self, asked: Mapping[str, Any]) -> list[Scored]:
        vectors, where, top_k = _listed(asked["vectors"]), asked["collection"], asked["top_k"]
        if isinstance(where, str):
            matrix = await asyncio.to_thread(matrix_of, vectors)
            with noted(self._service.note, "search", _COLLECTIONS, len(vectors)):
                found = await self._service.collections.nearest(self._tenant, where, matrix, top_k)
            return best_of(found, top_k)
        parts = where if isinstance(where, list) else [where]
        return await asyncio.to_thread(search, parts, vectors, top_k)

    async def _rank(self, command: RunProcessor, asked: Mapping[str, Any]) -> list[Scored]:
        passages = [each if isinstance(each, str) else each["text"] for each in asked["passages"]]
        texts = list(dict.fromkeys(passages))
        pairs, query = [(asked["query"], text) for text in texts], self._query(command)
        pool = self._service.rankers.pool(command.model or None, asked["batch"])
        scores = await pool.results(query, command.depth, pairs, self._tenant)
        return best_of(zip(texts, scores, strict=True), asked["top_k"])


@asynccontextmanager
async def processor_service(
    settings: RetrievalSettings,
    environ: Mapping[str, str],
    note: Note = lambda _: None,
    at_once: int | None = None,
) -> AsyncIterator[ProcessorService]:
    """Yield a service that is ready for use.

    Args:
        settings: engines, and the place of collections.
        environ: has their keys.
        note: called for each batch.
        at_once: requests to embedders, and to rankers, at most; None: no limit.

    Raises:
        SetupError: no engine of a kind can be reached, a key is missing, or the place of
            collections cannot be used.
    """
    settings.check_keys(environ)
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        await stack.enter_async_context(session)

        def engines(of: Sequence[ProcessorEngine]) -> list[AskedEngine]:
            room = None if at_once is None else asyncio.Semaphore(at_once)
            return [
                AskedEngine(session, each.base_url, _headers(each, environ), room) for each in of
            ]

        embedders = rankers = None
        if settings.embedders:
            found = engines(settings.embedding_engines)
            embedders = EngineGroup(found, _told("embed", asked_engine.ask_vectors, note))
            stack.push_async_callback(embedders.close)
            await embedders.look()
        if settings.rerankers:
            found = engines(settings.ranking_engines)
            rankers = EngineGroup(found, _told("rerank", asked_engine.ask_scores, note))
            stack.push_async_callback(rankers.close)
            await rankers.look()
        collections = None
        if settings.collections is not None:
            collections = BoundedCollections(await _opened(settings.collections))
            stack.push_async_callback(collections.close)
        yield ProcessorService(embedders, rankers, collections, note)


def _told(kind: str, ask: Ask[Item, Result], note: Note) -> Ask[Item, Result]:
    """Return `ask`, reporting each batch to `note`."""

    async def asked(engine: AskedEngine, model: str | None, items: Sequence[Item]) -> list[Result]:
        with noted(note, kind, urlsplit(engine.base_url).netloc, len(items)):
            return [*await ask(engine, model, items)]

    return asked


async def _opened(where: str) -> Collections:
    if is_postgres(where):
        return await PostgresCollections.open(where)
    return await LanceCollections.open(Path(where))


def _headers(engine: ProcessorEngine, environ: Mapping[str, str]) -> dict[str, str]:
    return headers_with(environ[engine.api_key_env] if engine.api_key_env else None)


def _listed(values: str | list[str]) -> list[str]:
    return [values] if isinstance(values, str) else values
