"""Pool that performs a run's calls: engines that a Kairos of its own serves, or another Kairos.

A Kairos of its own is a whole service, which stands above this folder: so the command or program
that begins a run passes in a function that opens one (`OpenEngines`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from kairos.core import KairosError, SetupError
from kairos.engines import Fleet
from kairos.proxy import HttpLLM, Patience
from kairos.settings import default_api_key
from kairos.workflows.run.driver import RunDriver
from kairos.workflows.run.processing import Processors
from kairos.workflows.run.run_store import RunRecord

PATIENCE_S = 3600.0  # with a pool that accepts no calls for now
_QUEUE_S = 90_000  # longer than a batch call may wait in the queue
_CONCURRENCY = 64  # calls that a Kairos elsewhere is assumed to run at once
_ENDS_AT_ONCE, _TRIES = 64, 8
_SAID = 300  # characters of messages of engines


class RunPool(msgspec.Struct, frozen=True):
    """Clients and engines that perform the calls. `processors`: all that the plan needs."""

    llm: HttpLLM
    capacity: Callable[[], int]  # calls run at once, at present
    on_workflow_end: Callable[[str], None]
    kv_tokens: int | None = None  # held by all engines together; None: not known
    instances: int = 1  # engines
    caches_prefixes: bool = True  # engines cache prefixes of prompts, as far as known
    processors: Processors | None = None  # None: the flow needs none
    problems: Callable[[], Sequence[str]] = tuple  # of engines, if none accepts calls now
    at: tuple[str, str | None] = ("", None)  # base URL, and API key
    fleet: Fleet | None = None  # of a Kairos of its own: engines may be added and drained
    # Runs for as long as the run: loads the models that its calls need.
    follow: Callable[[RunDriver], Coroutine[None, None, None]] | None = None

    def waits_for(self, now_s: float) -> str:
        """Return why calls of a run are not answered now; empty if they are."""
        waits, problems = self.llm.patience.waits, self.problems()
        said = [] if not problems else [f"no engine accepts calls: {'; '.join(problems)[:_SAID]}"]
        if self.processors is not None:
            said += [f"retrying processors: {each[:_SAID]}" for each in self.processors.waits_for]
        if waits:
            first, again_s = waits[0], min(each.again_s for each in waits)
            many = "1 call is" if len(waits) == 1 else f"{len(waits):,} calls are"
            said.append(
                f"{many} refused and retried, next in {max(0.0, again_s - now_s):.0f} s: "
                f"{first.why[:_SAID]} (since {now_s - first.since_s:.0f} s; fails after "
                f"{first.until_s - first.since_s:,.0f} s)"
            )
        return "; ".join(said)


# Opens a pool of the engines that a record names, behind a Kairos of its own: without engines one
# that gets them later, by its fleet. On Ray it runs in the coordinator's process, so it is a
# function of a module. Arguments: the record; the directory for the log of facts and decisions
# (None: no log); the host to listen on (None: for this host alone). Raises SetupError: no engine
# can be used.
OpenEngines = Callable[[RunRecord, str | None, str | None], AbstractAsyncContextManager[RunPool]]


@asynccontextmanager
async def open_pool(
    record: RunRecord,
    environ: Mapping[str, str],
    open_engines: OpenEngines,
    log_dir: str | None = None,
    host: str | None = None,
) -> AsyncIterator[RunPool]:
    """Yield the pool that a record names, ready to be called.

    `environ` holds the key for a Kairos elsewhere. `open_engines` opens a Kairos of its own, with
    `log_dir` and `host`. Raises SetupError: no engine can be used.
    """
    if record.url is not None:
        async with pool_elsewhere(record, record.url, environ) as pool:
            yield pool
    else:
        async with open_engines(record, log_dir, host) as pool:
            yield pool


@asynccontextmanager
async def pool_elsewhere(
    record: RunRecord, url: str, environ: Mapping[str, str]
) -> AsyncIterator[RunPool]:
    """Yield the pool of a Kairos that runs already, at this URL."""
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    key = default_api_key(record.api_key_env, environ)
    async with open_llm(record, base_url, key) as llm, _Ends(llm) as ends:
        capacity = record.concurrency or _CONCURRENCY
        yield RunPool(llm, lambda: capacity, ends.report_end, at=(base_url, key))


@asynccontextmanager
async def no_engines(record: RunRecord) -> AsyncIterator[RunPool]:
    """Yield a pool without engines, for a flow that makes no LLM calls."""
    async with open_llm(record, "http://none.invalid/v1", None) as llm:
        capacity = record.concurrency or _CONCURRENCY
        yield RunPool(llm, lambda: capacity, lambda _: None)


def open_llm(record: RunRecord, base_url: str, key: str | None) -> HttpLLM:
    """Return a client for a run's calls, which is patient; an async context manager."""
    patience = Patience(PATIENCE_S)
    return HttpLLM(base_url, key, model=record.model, timeout_s=_QUEUE_S, patience=patience)


async def default_model(llm: HttpLLM, named: str | None, models: tuple[str | None, ...]) -> str:
    """Return the model of calls that name none, once all named models were found to be served.

    Raises:
        SetupError: one is not served, or none is named and there is more than one.
    """
    try:
        served = await llm.models()
    except KairosError as error:
        raise SetupError(f"what models are served cannot be found out: {error}") from None
    return chosen_model(served, named, models)


def chosen_model(served: Sequence[str], named: str | None, models: tuple[str | None, ...]) -> str:
    """Return the model to ask, of the ones that are served.

    Raises:
        SetupError: a named one is not served, or several are and none is named.
    """
    wanted = [each for each in (*models, named) if each is not None]
    if missing := [each for each in wanted if each not in served]:
        raise SetupError(
            f"no engine serves the model '{missing[0]}'; served: {', '.join(served) or 'none'}"
        )
    if named is not None or None not in models:
        return named or ""
    if len(served) != 1:
        raise SetupError(
            f"the flow names no model, and there are {', '.join(served) or 'none'}: choose one "
            "with --model"
        )
    return served[0]


class _Ends:
    """Report ended workflows to a Kairos elsewhere, a few at a time.

    A Kairos that has never understood a report gets no more of them.
    """

    def __init__(self, llm: HttpLLM) -> None:
        self._llm = llm
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_understood, self._failures = False, 0

    async def __aenter__(self) -> "_Ends":
        return self

    async def __aexit__(self, *_raised: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def report_end(self, workflow_id: str) -> None:
        """Report the end of a workflow; without a report, Kairos notices its silence."""
        is_worth_it = self._is_understood or self._failures < _TRIES
        if is_worth_it and len(self._tasks) < _ENDS_AT_ONCE:
            task = asyncio.create_task(self._report_end(workflow_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _report_end(self, workflow_id: str) -> None:
        try:
            await self._llm.end_workflow(workflow_id)
            self._is_understood = True
        except KairosError:
            self._failures += 1
