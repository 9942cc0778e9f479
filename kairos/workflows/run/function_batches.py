"""Batches of calls, for functions that take several calls at once.

Waiting calls are ordered as for engines (`workflows/execute/batching.py`). A function has two
batches at once, so that one is ready when another ends. If a batch fails, each half of it is tried
again, so that no call fails because of others in its batch; a function with effects is not called
again.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from kairos.core import SECOND, KairosError
from kairos.workflows.declare.functions import FunctionFailed, RegisteredFunction, given, said_of
from kairos.workflows.execute.batching import BatchQueue, Query

_AT_ONCE = 2  # batches of a function
_THREADS = 32

_Key = tuple[str, int, tuple[str, ...]]  # function, batch size, argument names
Value = tuple[object, int]  # with the µs that its batch took


class _Waiting(NamedTuple):
    arguments: Mapping[str, object]
    value: asyncio.Future[Value]


class _Queue:
    """Calls of one function that may share a batch."""

    def __init__(self, known: RegisteredFunction, batch: int) -> None:
        self.known, self.batch = known, batch
        self.order, self.waiting = BatchQueue(), dict[int, _Waiting]()
        self.under_way = 0


class FunctionBatches:
    """Batches of one run, or of all invocations of a process."""

    def __init__(self, at_once: int | None = None) -> None:
        """Prepare the queues. `at_once`: batches of a function at most; None: two."""
        self._at_once = min(at_once or _AT_ONCE, _AT_ONCE)
        self._queues: dict[_Key, _Queue] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def value(
        self,
        name: str,
        known: RegisteredFunction,
        arguments: Mapping[str, object],
        batch: int,
        query: Query,
        depth: int,
        tenant: str = "",
    ) -> Value:
        """Return the function's value for one call, made in a batch of at most `batch` calls.

        Raises:
            FunctionFailed: it has no value for this call.
            KairosError: the function raised it.
        """
        key = name, batch, tuple(sorted(arguments))
        if (queue := self._queues.get(key)) is None:
            queue = self._queues[key] = _Queue(known, batch)
        number = queue.order.add(query, depth, 1, tenant)
        value: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        queue.waiting[number] = _Waiting(arguments, value)
        # Deferred, so that calls made ready by the same fact share a batch.
        asyncio.get_running_loop().call_soon(self._go, key)
        try:
            return await value
        finally:
            if queue.waiting.pop(number, None) is not None:
                queue.order.withdraw(number)

    async def close(self) -> None:
        """Cancel all batches. A function's thread ends with the function."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _go(self, key: _Key) -> None:
        queue = self._queues.get(key)
        if queue is None:
            return
        while queue.order and queue.under_way < self._at_once:
            taken = [queue.waiting.pop(share.id) for share in queue.order.take(queue.batch)]
            queue.under_way += 1
            task = asyncio.create_task(self._work(key, queue, taken))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not queue.order and not queue.under_way:
            del self._queues[key]

    async def _work(self, key: _Key, queue: _Queue, calls: Sequence[_Waiting]) -> None:
        try:
            await self._ask(queue.known, calls)
        finally:
            queue.under_way -= 1
            self._go(key)

    async def _ask(self, known: RegisteredFunction, calls: Sequence[_Waiting]) -> None:
        calls = [each for each in calls if not each.value.done()]
        if not calls:
            return
        began_s = time.monotonic()
        try:
            values = await self._values(known, [each.arguments for each in calls])
        except (KairosError, FunctionFailed) as error:
            if len(calls) == 1 or known.purity == "effect":
                for each in calls:
                    if not each.value.done():
                        each.value.set_exception(error)
                return
            middle = len(calls) // 2
            await self._ask(known, calls[:middle])
            await self._ask(known, calls[middle:])
            return
        took_us = round((time.monotonic() - began_s) * SECOND / len(calls))
        for each, value in zip(calls, values, strict=True):
            if not each.value.done():
                each.value.set_result((value, took_us))

    async def _values(
        self, known: RegisteredFunction, calls: Sequence[Mapping[str, object]]
    ) -> list[Any]:
        """Return a value for each call. Raises FunctionFailed, KairosError."""
        together = {name: [each[name] for each in calls] for name in calls[0]}
        if inspect.iscoroutinefunction(known.function):
            value = known.call(together)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="batched function")
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(self._threads, known.call, together)
        if inspect.isawaitable(value):
            value = given(await awaited(value))
        if not isinstance(value, list) or len(value) != len(calls):
            many = f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__
            raise FunctionFailed(
                f"a batched function returns a list with a value for each call: for {len(calls)} "
                f"calls it gave {many}"
            )
        return value


async def awaited(value: Awaitable[object]) -> object:
    """Return the result of a function's coroutine.

    Raises:
        FunctionFailed: it raised anything, a CancelledError of its own included.
        asyncio.CancelledError: the call is abandoned.
        KairosError: the function raised it.
    """
    try:
        return await value
    except KairosError:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise FunctionFailed(said_of(error)) from None
