"""Engines of one kind; they may serve different models."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic

from kairos.core import InvalidRequest, KairosError, SetupError, Unavailable
from kairos.workflows.execute.batching import Query
from kairos.workflows.retrieve.asked_engine import AskedEngine
from kairos.workflows.retrieve.engine_pool import EnginePool, Item, Result, SharedEngines

Ask = Callable[[AskedEngine, str | None, Sequence[Item]], Awaitable[Sequence[Result]]]


_MOST_POOLS = 256  # engines that do not list their models accept any name


class EngineGroup(Generic[Item, Result]):
    """Pools of engines: one for each model and batch size, of the engines that serve the model."""

    def __init__(self, engines: Sequence[AskedEngine], ask: Ask[Item, Result]) -> None:
        """Take engines. `ask`: has an engine work on some items, with a model."""
        self._engines = {engine.base_url: engine for engine in engines}
        self._ask = ask
        self._pools: dict[tuple[str | None, int], EnginePool[Item, Result]] = {}
        self._shared = SharedEngines()

    async def look(self) -> None:
        """Poll the engines for their models.

        Raises:
            SetupError: none can be reached.
        """
        looks = (engine.look() for engine in self._engines.values())
        found = await asyncio.gather(*looks, return_exceptions=True)
        problems = [each for each in found if isinstance(each, KairosError)]
        if problems and len(problems) == len(found):
            raise SetupError("; ".join(str(each) for each in problems))

    @property
    def models(self) -> list[str]:
        """Return all models offered; empty: no engine lists its models."""
        return sorted({name for each in self._engines.values() for name in each.models or ()})

    def check(self, model: str | None) -> list[str]:
        """Return the base URLs of the engines that serve a model, as far as known.

        Raises:
            InvalidRequest: no engine serves it.
        """
        serving = [url for url, each in self._engines.items() if each.serves(model)]
        if not serving:
            served = ", ".join(self.models)
            raise InvalidRequest(
                f"no engine of this kind serves the model '{model}'; served: {served}"
            )
        return serving

    def pool(self, model: str | None, room: int) -> EnginePool[Item, Result]:
        """Return the pool for a model, with batches of at most `room` items.

        Raises:
            InvalidRequest: no engine serves that model.
            Unavailable: too many other pools are in use.
        """
        if (model, room) not in self._pools:
            serving = self.check(model)
            if len(self._pools) == _MOST_POOLS:
                self._forget_idle()
            ask = partial(self._ask_at, model)
            self._pools[model, room] = EnginePool(serving, ask, room, shared=self._shared)
        return self._pools[model, room]

    async def results(
        self,
        model: str | None,
        room: int,
        query: Query,
        depth: int,
        items: Sequence[Item],
        tenant: str = "",
    ) -> list[Result]:
        """Return the result of each item, see `EnginePool.results`."""
        return await self.pool(model or None, room).results(query, depth, items, tenant)

    @property
    def waits_for(self) -> list[str]:
        """Return why pools wait: their engines accept nothing now."""
        return [said for each in self._pools.values() if (said := each.waits_for)]

    def _forget_idle(self) -> None:
        """Remove idle pools. Raises Unavailable: all have work."""
        idle = [key for key, pool in self._pools.items() if pool.is_idle]
        if not idle:
            raise Unavailable(f"{_MOST_POOLS} models and sizes of batches are in use")
        for key in idle:
            self._pools.pop(key).leave()

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    async def _ask_at(self, model: str | None, url: str, items: Sequence[Item]) -> Sequence[Result]:
        return await self._ask(self._engines[url], model, items)
