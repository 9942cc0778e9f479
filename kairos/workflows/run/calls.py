"""Perform an executor's calls: of models over HTTP, functions in threads, and processors.

A call is named by its run, node, row and attempt; its operator is the agent, and its row the
workflow. From these headers Kairos learns the flow's calls, and reports on them.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

from kairos.core import SECOND, Header, InvalidRequest, KairosError
from kairos.proxy import Listen
from kairos.workflows.declare.functions import (
    FunctionFailed,
    Functions,
    RegisteredFunction,
    given,
    said_of,
)
from kairos.workflows.execute.commands import (
    TOUCH_AGENT,
    DropHeld,
    IssueCall,
    RunFunction,
    RunProcessor,
    TouchPrefix,
)
from kairos.workflows.execute.facts import CallAnswered, CallBroke, ItemsFinished, PrefixTouched
from kairos.workflows.execute.observation import TimeShares
from kairos.workflows.run.chat_answer import ParsedItems, list_listener, read_chat
from kairos.workflows.run.function_batches import FunctionBatches, awaited
from kairos.workflows.run.processing import ProcessorCalls, ValuesLost

logger = logging.getLogger(__name__)

_ID_LENGTH = 128  # of a value in a header
_ERROR_LENGTH = 500
_IDEMPOTENCY_KEY = "idempotency_key"

CallCommand = IssueCall | RunFunction | RunProcessor | TouchPrefix | DropHeld
# By name and function, its arguments and CPUs: its value, and the seconds it took.
HeavyCall = Callable[
    [str, RegisteredFunction, Mapping[str, object], int], Awaitable[tuple[object, float]]
]
Tell = Callable[[CallAnswered | CallBroke | ItemsFinished | PrefixTouched], None]


class ChatLLM(Protocol):
    """Client that makes LLM calls."""

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Return a chat completion.

        Raises:
            InvalidRequest: a retry would fail, too.
            KairosError: it failed.
        """

    async def complete_streamed(
        self, body: dict[str, Any], headers: Mapping[str, str], listen: Listen
    ) -> dict[str, Any]:
        """Like `complete`, streamed.

        `listen`: see `HttpLLM`; not used if the answer comes whole.
        """


def workflow_of(run_id: str, stage: int, row: int) -> str:
    """Return the workflow id for the calls of a row, or of a group."""
    return f"{run_id}/{row}" if stage == 0 else f"{run_id}/group/{row}"


def request_id(run_id: str, node: str, row: int, attempt: int) -> str:
    name = f"{run_id}/{node}/{row}/{attempt}"
    if len(name) <= _ID_LENGTH:
        return name
    short = blake2b(node.encode(), digest_size=8).hexdigest()
    return f"{run_id}/{short}/{row}/{attempt}"


class RunCalls:
    """Calls of one run. Each gets exactly one fact as its answer, unless it is abandoned."""

    def __init__(
        self,
        run_id: str,
        app: str,
        llm: ChatLLM,
        functions: Functions,
        processors: ProcessorCalls | None,
        tell: Tell,
        *,
        service_class: str,
        ahead_class: str | None,
        threads: int,
        at_once: int | None = None,
        batches: FunctionBatches | None = None,
        heavy: HeavyCall | None = None,
        tenant: str = "",
        began_at: int = 0,
    ) -> None:
        """Begin nothing yet.

        Args:
            run_id: names the run in the ids of its calls.
            app: the app of all calls.
            llm: makes the LLM calls.
            functions: registered functions.
            processors: for retrieval; None: the flow needs none.
            tell: receives the facts.
            service_class: of LLM calls.
            ahead_class: service class of calls that only prefill a prefix; None: none are made.
            threads: number of threads for functions.
            at_once: concurrent LLM calls at most, prefills included; None: the caller limits them.
            batches: of functions, shared with other runs; None: its own.
            heavy: calls functions that were declared with CPUs; None: they are called in threads.
            tenant: whose turn it is in shared batches.
            began_at: in shared batches, calls of earlier runs go first.
        """
        self._run_id, self._llm, self._functions, self._tell = run_id, llm, functions, tell
        self._processors = processors
        self._shares: dict[str, TimeShares] = {}  # by kind of processor
        self._of_all = {Header.APP: app, Header.CLASS: service_class}
        self._ahead_class = ahead_class
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="function")
        self._tasks: set[asyncio.Task[None]] = set()
        self._touches = 0
        limit = None if at_once is None else asyncio.Semaphore(at_once)
        self._own_batches = FunctionBatches(at_once) if batches is None else None
        self._batches = batches or self._own_batches
        self._tenant, self._began_at, self._heavy = tenant, began_at, heavy
        self._has_room: AbstractAsyncContextManager[object] = limit or nullcontext()
        self._begun: set[tuple[int, int]] = set()  # rows that made a call

    def perform(self, command: CallCommand) -> None:
        match command:
            case IssueCall():
                self._begun.add((command.stage, command.row))
                self._start(self._ask(command), command)
            case RunFunction():
                self._start(self._compute(command), command)
            case RunProcessor():
                self._start(self._run_processor(command), command)
            case TouchPrefix():
                if self._ahead_class is not None:
                    self._begin_task(self._touch_prefix(command, self._ahead_class))
            case DropHeld():
                assert self._processors is not None, "one of them had it"
                self._processors.drop_held(command)

    def finish_row(self, stage: int, row: int) -> str | None:
        """Return the workflow of a row that has ended; None if it made no call."""
        if (stage, row) not in self._begun:
            return None
        self._begun.discard((stage, row))
        return workflow_of(self._run_id, stage, row)

    async def abandon(self) -> None:
        """Cancel all calls. A function's thread runs to its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._own_batches is not None:
            await self._own_batches.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(
        self,
        work: Coroutine[Any, Any, CallAnswered],
        command: IssueCall | RunFunction | RunProcessor,
    ) -> None:
        self._begin_task(self._perform_timed(work, command.call, command.delay_us))

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform_timed(
        self, work: Coroutine[Any, Any, CallAnswered], call: int, delay_us: int
    ) -> None:
        try:
            if delay_us:
                await asyncio.sleep(delay_us / SECOND)
            fact: CallAnswered | CallBroke = await work
        except KairosError as error:
            is_final = isinstance(error, InvalidRequest) or error.is_final
            fact = CallBroke(call, str(error)[:_ERROR_LENGTH], retry=not is_final)
        except ValuesLost as error:
            fact = CallBroke(call, str(error), retry=True, lost=error.ids)
        except FunctionFailed as error:
            fact = CallBroke(call, str(error)[:_ERROR_LENGTH], retry=False)
        except Exception as error:  # noqa: BLE001 - an error of a call fails only its row
            fact = CallBroke(call, said_of(error)[:_ERROR_LENGTH], retry=False)
        finally:
            work.close()
        self._tell(fact)

    async def _touch_prefix(self, command: TouchPrefix, service_class: str) -> None:
        self._touches += 1
        headers = self._of_all | {
            Header.CLASS: service_class,
            Header.REQUEST_ID: request_id(self._run_id, TOUCH_AGENT, self._touches, 1),
            Header.WORKFLOW_ID: f"{self._run_id}/{TOUCH_AGENT}/{self._touches}",
            Header.AGENT: TOUCH_AGENT,
            Header.ATTEMPT: "1",
        }
        named = {} if command.model is None else {"model": command.model}
        try:
            async with self._has_room:
                answer = read_chat(await self._llm.complete({**named, **command.body}, headers))
        except KairosError as error:  # nobody needs it
            logger.debug("a static beginning of %s was not computed: %s", command.operator, error)
            return
        if command.number is not None:
            self._tell(PrefixTouched(command.number, answer.cached_tokens))

    async def _ask(self, command: IssueCall) -> CallAnswered:
        headers = self._of_all | {
            Header.REQUEST_ID: request_id(self._run_id, command.node, command.row, command.attempt),
            Header.WORKFLOW_ID: workflow_of(self._run_id, command.stage, command.row),
            Header.AGENT: command.operator,
            Header.ATTEMPT: str(command.attempt),
        }
        named = {} if command.model is None else {"model": command.model}
        async with self._has_room:
            completion = await self._complete(command, {**named, **command.body}, headers)
        answer = read_chat(completion)
        return CallAnswered(
            command.call,
            answer.text,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=answer.cached_tokens,
            cut=answer.cut,
            finish_reason=answer.finish_reason,
        )

    async def _complete(
        self, command: IssueCall, body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any]:
        items = command.items
        if items is None:
            return await self._llm.complete(body, headers)

        def on_items(first: int, new: list[object]) -> None:
            self._tell(ItemsFinished(command.call, first, new))

        if items.parser is None:
            return await self._llm.complete_streamed(
                body, headers, lambda: list_listener(items.path, items.most, on_items)
            )
        parse = partial(self._parse_part, items.parser, items.argument)
        attempts: list[ParsedItems] = []

        def listen() -> Callable[[str], None]:
            for each in attempts:
                each.close()
            attempts.append(ParsedItems(parse, items.most, on_items))
            return attempts[-1].on_text

        try:
            return await self._llm.complete_streamed(body, headers, listen)
        finally:
            for each in attempts:
                each.close()

    async def _parse_part(self, function: str, argument: str, text: str) -> object:
        """Return the parts of an unfinished text; None: the function fails."""
        known, loop = self._functions[function], asyncio.get_running_loop()
        if inspect.iscoroutinefunction(known.function):
            return None
        try:
            return await loop.run_in_executor(self._threads, known.call_alone, {argument: text})
        except (FunctionFailed, KairosError):
            return None

    async def _compute(self, command: RunFunction) -> CallAnswered:
        known = self._functions[command.function]
        arguments = dict(command.arguments)
        takes_key = _IDEMPOTENCY_KEY in inspect.signature(known.function).parameters
        if command.idempotency_key is not None and takes_key:
            arguments[_IDEMPOTENCY_KEY] = command.idempotency_key
        if command.batch is not None:
            assert self._batches is not None, "its own, or those of others"
            query = self._began_at, command.stage, command.row
            value, took_us = await self._batches.value(
                command.function,
                known,
                arguments,
                command.batch,
                query,
                command.depth,
                self._tenant,
            )
            return CallAnswered(command.call, value, took_us=took_us)
        if command.cpus is not None and self._heavy is not None:
            name, cpus = command.function, command.cpus
            value, took_s = await self._heavy(name, known, arguments, cpus)
            return CallAnswered(command.call, value, took_us=round(took_s * SECOND))
        took_s = 0.0
        if inspect.iscoroutinefunction(known.function):
            value = known.call(arguments)
        else:
            loop = asyncio.get_running_loop()
            value, took_s = await loop.run_in_executor(self._threads, _timed, known, arguments)
        if inspect.isawaitable(value):
            began_s = time.monotonic()
            value = given(await awaited(value))
            took_s += time.monotonic() - began_s
        return CallAnswered(command.call, value, took_us=round(took_s * SECOND))

    async def _run_processor(self, command: RunProcessor) -> CallAnswered:
        assert self._processors is not None, "a run begins with all processors that it needs"
        shares = self._shares.setdefault(command.kind, TimeShares())
        begun, took_s = shares.begin_call(command.items, time.monotonic()), 0.0
        try:
            value = await self._processors.run(command)
        finally:
            took_s = shares.end_call(begun, time.monotonic())
        return CallAnswered(command.call, value, took_us=round(took_s * SECOND))


def _timed(known: RegisteredFunction, arguments: dict[str, Any]) -> tuple[object, float]:
    """Return a function's result and the seconds it took, without its wait for a thread."""
    began_s = time.monotonic()
    value = known.call(arguments)
    return value, time.monotonic() - began_s
