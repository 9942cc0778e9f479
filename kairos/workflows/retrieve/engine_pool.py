"""Work on items, such as texts to embed, over several engines of one kind.

Engines may serve different models: an `EngineGroup` has a pool for each model and batch size.
Waiting items are sent in batches (`workflows/execute/batching.py`), each to the engine with the
fewest items in flight; among equals, to the one that has had the fewest. An engine has two batches
at once, so that it has the next one when it is done. The two are for all pools that share the
engine, so that nobody gets more of it by naming other models or batch sizes. A failing engine is
skipped for a while (`core/faults/circuits.py`) and its items wait again; results of other engines
are kept. Items that an engine rejects are sent again, alone, so that no item fails because of
others in its batch.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

import msgspec

from kairos.core import (
    SECOND,
    Circuits,
    InvalidRequest,
    KairosError,
    SetupError,
    Unavailable,
    UpstreamFailed,
)
from kairos.proxy import ConnectionLost, RefusedForNow
from kairos.workflows.execute.batching import BatchQueue, BatchShare, Query, TenantTurns
from kairos.workflows.retrieve.asked_engine import AskedEngine

_AT_ONCE = 2  # batches of an engine
_WRONG_ANSWERS = 3  # for one item, by engines that are not well; then its work fails
_PUT_OFFS = 6  # of an item, by engines that accept others: a minute
PATIENCE_S = 300.0  # without any reachable engine

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Work(Generic[Item, Result]):
    """Items of one request, with their results."""

    def __init__(self, tenant: str, query: Query, depth: int, items: Sequence[Item]) -> None:
        self.tenant, self.query, self.depth, self.items = tenant, query, depth, items
        self.results: list[Result | None] = [None] * len(items)
        self.left = len(items)
        self.since_s = time.monotonic()  # start, or time of the latest result
        self.wrong_answers = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, first: int, results: Sequence[Result]) -> None:
        self.results[first : first + len(results)] = results
        self.left -= len(results)
        self.since_s = time.monotonic()
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: KairosError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Part(msgspec.Struct, Generic[Item, Result], frozen=True):
    """Consecutive items of some work, from the `first` on."""

    work: _Work[Item, Result]
    first: int
    items: int
    was_refused: bool = False  # when sent alone
    blamed: frozenset[str] = frozenset()  # engines that are skipped because of it
    put_off: int = 0  # number of times, when sent alone

    @property
    def content(self) -> Sequence[Item]:
        return self.work.items[self.first : self.first + self.items]

    def halves(self, left: int) -> "tuple[_Part[Item, Result], _Part[Item, Result]]":
        """Split it after its first `left` items."""
        first = msgspec.structs.replace(self, items=left)
        rest = {"first": self.first + left, "items": self.items - left}
        return first, msgspec.structs.replace(self, **rest)


class EngineLoad(msgspec.Struct):
    """Load of one engine."""

    batches: int = 0  # in flight
    items: int = 0  # in flight
    given: int = 0  # items ever sent to it
    sound: object = None  # an item that it has answered


class SharedEngines:
    """Engines shared by several pools: their batches in flight, and the order of tenants."""

    def __init__(self) -> None:
        self.turns, self.pools = TenantTurns(), set[EnginePool[Any, Any]]()
        self.batches: Counter[str] = Counter()  # in flight, by engine

    def go(self) -> None:
        """Start all batches that engines accept, by tenant: the one with the fewest items first."""
        while ready := [(pool.had, pool) for pool in self.pools if pool.is_ready]:
            min(ready, key=lambda each: each[0])[1].start_next()
        for pool in self.pools:
            pool.wake_later()


class EnginePool(Generic[Item, Result]):
    """Pool of engines that give the same results."""

    def __init__(
        self,
        engines: Iterable[str],
        ask: Callable[[str, Sequence[Item]], Awaitable[Sequence[Result]]],
        room: int,
        *,
        patience_s: float = PATIENCE_S,
        shared: SharedEngines | None = None,
    ) -> None:
        """Take the engines.

        Args:
            engines: their ids.
            ask: has an engine work on some items, and returns the result of each. It raises
                KairosErrors.
            room: items of a batch, at most.
            patience_s: how long an item may wait for a result while engines are unavailable.
            shared: the engines, if other pools use them too.
        """
        self.loads = {engine: EngineLoad() for engine in engines}
        self._ask, self._room, self._patience_s = ask, room, patience_s
        self._shared = shared or SharedEngines()
        self._shared.pools.add(self)
        self._queue = BatchQueue(turns=self._shared.turns)
        self._parts: dict[int, _Part[Item, Result]] = {}  # that wait, by id in the queue
        self._suspects: deque[list[_Part[Item, Result]]] = deque()  # wait, each for a batch alone
        self._later: dict[int, tuple[asyncio.TimerHandle, str]] = {}  # single ones, and why; by id
        self._circuits = Circuits()
        self._refused: dict[str, tuple[float, str]] = {}  # since when, and why, by engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.Handle | None = None

    async def results(
        self, query: Query, depth: int, items: Sequence[Item], tenant: str = ""
    ) -> list[Result]:
        """Return the result of each item, in their order.

        Raises:
            InvalidRequest: an engine rejected an item, and so did another, if there is one.
            UpstreamFailed: an engine answers other items, but not one of these.
            Unavailable: no result came for `patience_s`.
        """
        if not items:
            return []
        work: _Work[Item, Result] = _Work(tenant, query, depth, items)
        self._wait(_Part(work, 0, len(items)))
        try:
            self._shared.go()
            await work.done
        finally:
            if work.left:
                for number in [n for n, part in self._parts.items() if part.work is work]:
                    self._queue.withdraw(number)
                    del self._parts[number]
        return [each for each in work.results if each is not None]

    @property
    def waits_for(self) -> str:
        """Return why all engines refuse waiting items; empty if an engine accepts them."""
        if self.is_idle:
            return ""
        if len(self._refused) < len(self.loads):
            put_off = next((why for _, why in self._later.values()), "")
            return put_off and f"{put_off} ({len(self._later):,} items)"
        since_s, why = min(self._refused.values())
        ago_s = time.monotonic() - since_s
        return f"{why} (since {ago_s:.0f} s; fails after {self._patience_s:,.0f} s)"

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits, and no engine has a batch of it."""
        has_work = any(load.batches for load in self.loads.values())
        return not (self._waits or self._later or has_work)

    @property
    def _waits(self) -> bool:
        return bool(self._queue or self._suspects)

    def leave(self) -> None:
        """Release the engines to other pools; this one is idle."""
        self._shared.pools.discard(self)

    async def close(self) -> None:
        """Cancel all batches. Nobody waits for results any more."""
        self.leave()
        if self._wake is not None:
            self._wake.cancel()
        for timer, _ in self._later.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wait(self, part: _Part[Item, Result]) -> None:
        work = part.work
        self._parts[self._queue.add(work.query, work.depth, part.items, work.tenant)] = part

    @property
    def is_ready(self) -> bool:
        """Return whether a batch waits, and an engine is free for it."""
        return self._waits and self._free_engine() is not None

    @property
    def had(self) -> int:
        """Return the items that the next tenant has had so far; -1 if a suspect waits."""
        return -1 if self._suspects else self._shared.turns.had(self._queue.next_tenant)

    def start_next(self) -> None:
        """Start a batch at a free engine."""
        engine = self._free_engine()
        if engine is not None and (parts := self._next_batch()):
            self._start(engine, parts)

    def wake_later(self) -> None:
        """Schedule a new attempt for when a skipped engine may be tried again."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if not self._waits:
            return
        loop, now = asyncio.get_running_loop(), _now()
        at = self._circuits.next_try_at(now)
        if self.is_ready:  # its time came after `go` had checked
            self._wake = loop.call_soon(self._shared.go)
        elif at is not None:
            self._wake = loop.call_later(max(0, at - now) / SECOND, self._shared.go)

    def _next_batch(self) -> list[_Part[Item, Result]]:
        """Return the next batch; empty if its work ended in the meantime."""
        if self._suspects:
            return [part for part in self._suspects.popleft() if not part.work.done.done()]
        return [self._part(share) for share in self._queue.take(self._room)]

    def _part(self, share: BatchShare) -> _Part[Item, Result]:
        of = self._parts[share.id]
        if share.first + share.items == of.items:
            del self._parts[share.id]
        return _Part(of.work, of.first + share.first, share.items)

    def _free_engine(self) -> str | None:
        now = _now()
        free = [
            engine
            for engine, load in self.loads.items()
            if self._shared.batches[engine] < _AT_ONCE
            and self._circuits.admits_call(engine, load.batches, now)
        ]
        return min(free, key=self._load, default=None)

    def _load(self, engine: str) -> tuple[int, int]:
        load = self.loads[engine]
        return load.items, load.given

    def _start(self, engine: str, parts: list[_Part[Item, Result]]) -> None:
        task = asyncio.create_task(self._work_on(engine, parts))
        items, load = sum(part.items for part in parts), self.loads[engine]
        self._shared.batches[engine] += 1
        load.batches += 1
        load.items += items
        load.given += items
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_on(self, engine: str, parts: list[_Part[Item, Result]]) -> None:
        items = [item for part in parts for item in part.content]
        try:
            results = await self._ask(engine, items)
            assert len(results) == len(items), (len(results), len(items))
        except Unavailable as error:
            if isinstance(error, ConnectionLost):
                self._refused.pop(engine, None)
                await self._answered_wrongly(engine, parts, error)
            elif isinstance(error, RefusedForNow) and await self._is_well(engine):
                self._put_off(parts, error)
            else:
                self._wait_again(engine, parts, error)
        except InvalidRequest as error:
            self._bisect(engine, parts, error)
        except KairosError as error:
            await self._answered_wrongly(engine, parts, error)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of a defect of ours
            said = f"{engine}: {type(error).__name__}: {error}"
            await self._answered_wrongly(engine, parts, UpstreamFailed(said))
        else:
            self._refused.pop(engine, None)
            self._circuits.count_answer(engine, _now(), _AT_ONCE)
            self.loads[engine].sound = items[0]
            begin = 0
            for part in parts:
                part.work.take(part.first, results[begin : begin + part.items])
                begin += part.items
        finally:
            self._shared.batches -= Counter((engine,))  # an engine without any has no entry
            self.loads[engine].batches -= 1
            self.loads[engine].items -= len(items)
        self._shared.go()

    async def _answered_wrongly(
        self, engine: str, parts: list[_Part[Item, Result]], error: KairosError
    ) -> None:
        """Find out whether the engine or an item is at fault."""
        trusted = self._circuits.state(engine, _now()) == "closed"
        if self._others(engine):
            self._circuits.open_circuit(engine, _now())
            parts = [msgspec.structs.replace(part, blamed=part.blamed | {engine}) for part in parts]
            self._bisect(engine, parts, error)
        elif (trusted and _is_many(parts)) or await self._is_well(engine):
            self._bisect(engine, parts, error)
        else:
            self._circuits.open_circuit(engine, _now())
            self._suspect(parts, error)

    async def _is_well(self, engine: str) -> bool:
        """Return whether the engine still answers an item that it has answered before."""
        sound = self.loads[engine].sound
        if sound is None:
            return False
        try:
            await self._ask(engine, [cast("Item", sound)])
        except KairosError:
            return False
        self._circuits.count_answer(engine, _now(), _AT_ONCE)
        return True

    def _bisect(self, engine: str, parts: list[_Part[Item, Result]], error: KairosError) -> None:
        """Send each half alone; send a single item to another engine, then let it fail."""
        others = self._others(engine)
        parts = [part for part in parts if not part.work.done.done()]
        if not parts:
            return
        if _is_many(parts):
            for half in _halves(parts):
                is_wrong = not isinstance(error, InvalidRequest)
                self._start(min(others, key=self._load) if others and is_wrong else engine, half)
            return
        (part,) = parts
        if part.was_refused or not others:
            for blamed in part.blamed:  # it was not their fault
                self._circuits.close_circuit(blamed)
            part.work.fail(error)
        else:
            again = msgspec.structs.replace(part, was_refused=True)
            self._start(min(others, key=self._load), [again])

    def _suspect(self, parts: list[_Part[Item, Result]], error: KairosError) -> None:
        """Queue each half for an engine that is well; a single item fails after a few attempts."""
        if _is_many(parts):
            self._suspects += _halves(parts)
            return
        work = parts[0].work
        work.wrong_answers += 1
        if work.wrong_answers == _WRONG_ANSWERS:
            work.fail(error)
        else:
            self._suspects.append(parts)

    def _put_off(self, parts: list[_Part[Item, Result]], error: KairosError) -> None:
        """Try again later, each half alone: the engine accepts other items.

        A single item is sent again after 1 s, 2 s, 4 s and so on, 6 times.
        """
        if _is_many(parts):
            self._suspects += _halves(parts)
            return
        part = msgspec.structs.replace(parts[0], put_off=parts[0].put_off + 1)
        if self._has_waited(part.work, error):
            return
        if part.put_off > _PUT_OFFS:
            part.work.fail(error)
            return

        def again() -> None:
            del self._later[id(part)]
            self._suspects.append([part])
            self._shared.go()

        timer = asyncio.get_running_loop().call_later(2 ** (part.put_off - 1), again)
        self._later[id(part)] = timer, str(error)

    def _has_waited(self, work: _Work[Item, Result], error: KairosError) -> bool:
        """Return whether work has waited for too long; if so, let it fail."""
        if time.monotonic() - work.since_s > self._patience_s:
            work.fail(error)
        return work.done.done()

    def _others(self, engine: str) -> list[str]:
        """Return the other engines that may get another batch."""
        now = _now()
        return [
            each
            for each, load in self.loads.items()
            if each != engine and self._circuits.admits_call(each, load.batches, now)
        ]

    def _wait_again(
        self, engine: str, parts: list[_Part[Item, Result]], error: KairosError
    ) -> None:
        """Queue the parts again, as the engine was unavailable; work that waited too long fails."""
        self._circuits.open_circuit(engine, _now())
        since_s, _ = self._refused.get(engine, (time.monotonic(), ""))
        self._refused[engine] = since_s, str(error)
        left = [part for part in parts if not self._has_waited(part.work, error)]
        knows_nothing = self.loads[engine].sound is None  # that it takes
        if isinstance(error, RefusedForNow) and knows_nothing and _is_many(left):
            self._suspects += _halves(left)  # perhaps it refuses one of these alone
            return
        for part in left:
            self._wait(part)


def _is_many(parts: Sequence[_Part[Item, Result]]) -> bool:
    """Return whether there is more than one item."""
    return sum(part.items for part in parts) > 1


def _halves(parts: Sequence[_Part[Item, Result]]) -> list[list[_Part[Item, Result]]]:
    """Return the first half of the items, and the rest."""
    left = sum(part.items for part in parts) // 2
    first: list[_Part[Item, Result]] = []
    rest: list[_Part[Item, Result]] = []
    for part in parts:
        if 0 < left < part.items:
            cut, remains = part.halves(left)
            first.append(cut)
            rest.append(remains)
            left = 0
        else:
            (first if left > 0 else rest).append(part)
            left -= min(left, part.items)
    return [first, rest]


def _now() -> int:
    return time.monotonic_ns() // 1000


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
        """Poll the engines for their models. Raises SetupError: none can be reached."""
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
