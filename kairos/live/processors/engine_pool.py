"""Work on items, such as texts to embed, over several engines of one sort.

What waits goes in batches (`execution/batching.py`), each to the engine that has the fewest items
in hand, of equal ones to that which has had the fewest. An engine has two batches at once, so that
it has the next one when it is done. One that fails is left alone for a while (`faults/circuits.py`)
and what it had waits again: what others did meanwhile is kept. Work that an engine finds wrong is
asked for once more, alone, so that nothing suffers by what else was in its batch.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from kairos.errors import InvalidRequest, KairosError, Unavailable, UpstreamFailed
from kairos.execution.batching import BatchQueue, BatchShare, Query
from kairos.faults.circuits import Circuits
from kairos.model import SECOND

_AT_ONCE = 2  # batches of an engine
_WRONG_ANSWERS = 3  # that work has from engines, then it is given up
PATIENCE_S = 300.0  # with engines of which none can be reached

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Work(Generic[Item, Result]):
    """Items that somebody waits for."""

    def __init__(self, query: Query, depth: int, items: Sequence[Item]) -> None:
        self.query, self.depth, self.items = query, depth, items
        self.results: list[Result | None] = [None] * len(items)
        self.left = len(items)
        self.since_s = time.monotonic()  # it began, or had the latest of its results
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
    """Items of some work, from the `first` on."""

    work: _Work[Item, Result]
    first: int
    items: int
    was_refused: bool = False  # alone

    @property
    def content(self) -> Sequence[Item]:
        return self.work.items[self.first : self.first + self.items]


class EngineLoad(msgspec.Struct):
    """Of one engine."""

    batches: int = 0  # that it has in hand
    items: int = 0  # of these
    given: int = 0  # items that it ever had


class EnginePool(Generic[Item, Result]):
    """Of engines that give the same results."""

    def __init__(
        self,
        engines: Iterable[str],
        ask: Callable[[str, Sequence[Item]], Awaitable[Sequence[Result]]],
        room: int,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """
        Args:
            engines: their ids.
            ask: has that engine work on some items, and gives the result of each. It raises
                KairosErrors.
            room: items of a batch, at most.
        """
        self.loads = {engine: EngineLoad() for engine in engines}
        self._ask, self._room, self._patience_s = ask, room, patience_s
        self._queue = BatchQueue()
        self._parts: dict[int, _Part[Item, Result]] = {}  # that wait, by id in the queue
        self._circuits = Circuits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None

    async def results(self, query: Query, depth: int, items: Sequence[Item]) -> list[Result]:
        """Of each item, in their order.

        Raises:
            InvalidRequest: an engine found one wrong, and so did another, if there is one.
            UpstreamFailed: what came was no result, several times.
            Unavailable: nothing came for as long as patience lasts.
        """
        if not items:
            return []
        work: _Work[Item, Result] = _Work(query, depth, items)
        self._wait(_Part(work, 0, len(items)))
        try:
            self._go()
            await work.done
        finally:
            if work.left:
                self._withdraw(work)
        return [each for each in work.results if each is not None]

    @property
    def is_idle(self) -> bool:
        """Nobody waits, and no engine has anything of it in hand."""
        return not self._queue and not any(load.batches for load in self.loads.values())

    async def close(self) -> None:
        """Leave what is in hand. Nobody waits for results any more."""
        if self._wake is not None:
            self._wake.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wait(self, part: _Part[Item, Result]) -> None:
        self._parts[self._queue.add(part.work.query, part.work.depth, part.items)] = part

    def _withdraw(self, work: _Work[Item, Result]) -> None:
        for number in [n for n, part in self._parts.items() if part.work is work]:
            self._queue.withdraw(number)
            del self._parts[number]

    def _go(self) -> None:
        """As many batches as there are engines for them."""
        while self._queue and (engine := self._free_engine()) is not None:
            self._start(engine, [self._part(share) for share in self._queue.take(self._room)])
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        now = _now()
        if self._queue and (at := self._circuits.next_try_at(now)) is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(max(0, at - now) / SECOND, self._go)

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
            if load.batches < _AT_ONCE and self._circuits.takes(engine, load.batches, now)
        ]
        return min(free, key=self._load, default=None)

    def _load(self, engine: str) -> tuple[int, int]:
        load = self.loads[engine]
        return load.items, load.given

    def _start(self, engine: str, parts: list[_Part[Item, Result]]) -> None:
        task = asyncio.create_task(self._work_on(engine, parts))
        items, load = sum(part.items for part in parts), self.loads[engine]
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
        except InvalidRequest as error:
            self._refused(engine, parts, error)
        except KairosError as error:
            self._failed(engine, parts, error)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of a defect of ours
            said = f"{engine}: {type(error).__name__}: {error}"
            self._failed(engine, parts, UpstreamFailed(said))
        else:
            self._circuits.answered(engine, _now(), _AT_ONCE)
            begin = 0
            for part in parts:
                part.work.take(part.first, results[begin : begin + part.items])
                begin += part.items
        finally:
            self.loads[engine].batches -= 1
            self.loads[engine].items -= len(items)
        self._go()

    def _refused(
        self, engine: str, parts: list[_Part[Item, Result]], error: InvalidRequest
    ) -> None:
        """Each part is asked for alone; one that was alone, of another engine."""
        if len(parts) > 1:
            for part in parts:
                self._start(engine, [part])
            return
        part, now = parts[0], _now()
        others = [
            each
            for each, load in self.loads.items()
            if each != engine and self._circuits.takes(each, load.batches, now)
        ]
        if part.was_refused or not others:
            part.work.fail(error)
        else:
            again = msgspec.structs.replace(part, was_refused=True)
            self._start(min(others, key=self._load), [again])

    def _failed(self, engine: str, parts: list[_Part[Item, Result]], error: KairosError) -> None:
        """Each part waits again, but for work that has waited for too long, or had too much."""
        self._circuits.open(engine, _now())
        is_wrong = not isinstance(error, Unavailable)
        for work in {id(part.work): part.work for part in parts}.values():
            work.wrong_answers += is_wrong
            waited_s = time.monotonic() - work.since_s
            if work.wrong_answers == _WRONG_ANSWERS or waited_s > self._patience_s:
                work.fail(error)
        for part in parts:
            if not part.work.done.done():
                self._wait(part)


def _now() -> int:
    return time.monotonic_ns() // 1000
