"""Engines of one sort, each of which may have other models."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic

from kairos.core.errors import InvalidRequest, KairosError, SetupError, Unavailable
from kairos.workflows.execute.batching import Query
from kairos.workflows.retrieve.asked_engine import AskedEngine
from kairos.workflows.retrieve.engine_pool import EnginePool, Item, Result, SharedEngines

Ask = Callable[[AskedEngine, str | None, Sequence[Item]], Awaitable[Sequence[Result]]]


_MOST_POOLS = 256  # engines that do not tell their models take any name


class EngineGroup(Generic[Item, Result]):
    """For each model, and size of batches, there is a pool of those that serve it."""

    def __init__(self, engines: Sequence[AskedEngine], ask: Ask[Item, Result]) -> None:
        """`ask`: has an engine work on some items, for that model."""
        self._engines = {engine.base_url: engine for engine in engines}
        self._ask = ask
        self._pools: dict[tuple[str | None, int], EnginePool[Item, Result]] = {}
        self._shared = SharedEngines()

    async def look(self) -> None:
        """See which engines are there, and their models.

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
        """All that are offered; none: no engine tells."""
        return sorted({name for each in self._engines.values() for name in each.models or ()})

    def check(self, model: str | None) -> list[str]:
        """The base URLs of those that serve it, as far as they tell.

        Raises:
            InvalidRequest: there is none.
        """
        serving = [url for url, each in self._engines.items() if each.serves(model)]
        if not serving:
            served = ", ".join(self.models)
            raise InvalidRequest(f"no engine for that serves the model '{model}'; served: {served}")
        return serving

    def pool(self, model: str | None, room: int) -> EnginePool[Item, Result]:
        """Whose batches have so many items at most.

        Raises:
            InvalidRequest: no engine serves that model.
            Unavailable: too many others are in use.
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
        """As `EnginePool` gives them."""
        return await self.pool(model or None, room).results(query, depth, items, tenant)

    @property
    def waits_for(self) -> list[str]:
        """Return why pools wait: their engines take nothing now."""
        return [said for each in self._pools.values() if (said := each.waits_for)]

    def _forget_idle(self) -> None:
        """Raises Unavailable: all have work."""
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
