"""Performs what an executor asks for: calls of models over HTTP, and functions in threads.

A call names itself as its run, node, row and attempt, its operator as the agent, and its row as the
workflow, so that whoever decides on it learns from it, and can tell about it.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

import msgspec

from kairos.errors import InvalidRequest, KairosError
from kairos.execution.commands import IssueCall, RunFunction
from kairos.execution.facts import CallAnswered, CallBroke
from kairos.flow.functions import Functions
from kairos.header_names import AGENT, APP, ATTEMPT, CLASS, REQUEST_ID, WORKFLOW_ID
from kairos.live.llm.http_llm import HttpLLM
from kairos.live.runs.chat_answer import read_chat
from kairos.model import SECOND

logger = logging.getLogger(__name__)

_ID_LENGTH = 128  # of what a header may name
_ERROR_LENGTH = 500
_IDEMPOTENCY_KEY = "idempotency_key"

Tell = Callable[[CallAnswered | CallBroke], None]


def workflow_of(run_id: str, stage: int, row: int) -> str:
    """How the calls of a row, or of a group, name their workflow."""
    return f"{run_id}/{row}" if stage == 0 else f"{run_id}/group/{row}"


def request_id(run_id: str, node: str, row: int, attempt: int) -> str:
    name = f"{run_id}/{node}/{row}/{attempt}"
    if len(name) <= _ID_LENGTH:
        return name
    short = blake2b(node.encode(), digest_size=8).hexdigest()
    return f"{run_id}/{short}/{row}/{attempt}"


class RunCalls:
    """Those of one run. Each is answered by exactly one fact, unless it is abandoned."""

    def __init__(
        self,
        run_id: str,
        app: str,
        llm: HttpLLM,
        functions: Functions,
        tell: Tell,
        *,
        service_class: str,
        threads: int,
    ) -> None:
        self._run_id, self._llm, self._functions, self._tell = run_id, llm, functions, tell
        self._of_all = {APP: app, CLASS: service_class}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="function")
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[tuple[int, int]] = set()  # rows that have made a call

    def issue(self, command: IssueCall) -> None:
        self._begun.add((command.stage, command.row))
        self._start(self._ask(command), command.call, command.delay_us)

    def run(self, command: RunFunction) -> None:
        self._start(self._compute(command), command.call, command.delay_us)

    def end_of(self, stage: int, row: int) -> str | None:
        """The workflow of a row that has ended, if it made a call."""
        if (stage, row) not in self._begun:
            return None
        self._begun.discard((stage, row))
        return workflow_of(self._run_id, stage, row)

    async def abandon(self) -> None:
        """Leave what is under way. A function's thread goes on to its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, work: Coroutine[Any, Any, CallAnswered], call: int, delay_us: int) -> None:
        task = asyncio.create_task(self._told(work, call, delay_us))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told(
        self, work: Coroutine[Any, Any, CallAnswered], call: int, delay_us: int
    ) -> None:
        try:
            if delay_us:
                await asyncio.sleep(delay_us / SECOND)
            fact: CallAnswered | CallBroke = await work
        except KairosError as error:
            is_final = isinstance(error, InvalidRequest)
            fact = CallBroke(call, str(error)[:_ERROR_LENGTH], retry=not is_final)
        except Exception as error:  # noqa: BLE001 - whatever a function raises fails its row alone
            said = f"{type(error).__name__}: {error}"[:_ERROR_LENGTH]
            fact = CallBroke(call, said, retry=False)
        finally:
            work.close()
        self._tell(fact)

    async def _ask(self, command: IssueCall) -> CallAnswered:
        headers = self._of_all | {
            REQUEST_ID: request_id(self._run_id, command.node, command.row, command.attempt),
            WORKFLOW_ID: workflow_of(self._run_id, command.stage, command.row),
            AGENT: command.operator,
            ATTEMPT: str(command.attempt),
        }
        named = {} if command.model is None else {"model": command.model}
        answer = read_chat(await self._llm.complete({**named, **command.body}, headers))
        return CallAnswered(
            command.call,
            answer.text,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=answer.cached_tokens,
            cut=answer.is_cut,
        )

    async def _compute(self, command: RunFunction) -> CallAnswered:
        function = self._functions[command.function].function
        arguments = dict(command.arguments)
        if command.idempotency_key is not None and _takes_key(function):
            arguments[_IDEMPOTENCY_KEY] = command.idempotency_key
        if inspect.iscoroutinefunction(function):
            value = await function(**arguments)
        else:
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(self._threads, lambda: function(**arguments))
        return CallAnswered(command.call, msgspec.to_builtins(value, str_keys=True))


def _takes_key(function: Callable[..., object]) -> bool:
    return _IDEMPOTENCY_KEY in inspect.signature(function).parameters
