"""Performers of a run's calls: engines behind a Kairos of its own, or a Kairos that runs."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kairos.core import KairosError, SetupError, WorkflowEnded
from kairos.engines import NOT_PROBED
from kairos.settings import (
    EngineSettings,
    KeySettings,
    default_api_key,
    load_settings,
    parse_engine,
)
from kairos.workflows import RunPool, RunRecord

if TYPE_CHECKING:  # `kairos plan` reads this module and calls nothing: 0.2 CPU s less
    from kairos.proxy import HttpLLM
    from kairos.service import Service

PATIENCE_S = 3600.0  # with a pool that takes no calls for now
JOIN_S = 30.0
_ANSWER_S = 3600  # for an answer that is not streamed
_QUEUE_S = 90_000  # longer than a batch call may wait in the queue
_CONCURRENCY = 64  # calls that a Kairos elsewhere is taken to run at once
_ENDS_AT_ONCE, _TRIES = 64, 8
TENANT = "default"


@asynccontextmanager
async def call_pool(
    record: RunRecord,
    environ: Mapping[str, str],
    log_dir: str | None = None,
    host: str | None = None,
) -> AsyncIterator[RunPool]:
    """Yield the pool that a record names, ready to be called.

    Args:
        record: of the run.
        environ: holds the key for a Kairos elsewhere.
        log_dir: where a Kairos of its own keeps facts and decisions; None: nowhere.
        host: where a Kairos of its own listens; None: for this host alone.

    Raises:
        SetupError: no engine can be used.
    """
    if record.url is not None:
        async with _elsewhere(record, record.url, environ) as pool:
            yield pool
    else:
        engines = [parse_engine(text) for text in record.engines]
        async with embedded_service(record, engines, log_dir, host) as (service, pool):
            await _joined(service)
            kv_tokens = _kv_tokens(service, len(engines))
            yield msgspec.structs.replace(
                pool,
                kv_tokens=kv_tokens,
                instances=len(engines),
                caches_prefixes=service.monitor.caches_prefixes(),
            )


@asynccontextmanager
async def no_engines(record: RunRecord) -> AsyncIterator[RunPool]:
    """Yield a pool without engines, for a flow that makes no LLM calls."""
    async with _llm(record, "http://none.invalid/v1", None) as llm:
        capacity = record.concurrency or _CONCURRENCY
        yield RunPool(llm, lambda: capacity, lambda _: None)


@asynccontextmanager
async def _elsewhere(
    record: RunRecord, url: str, environ: Mapping[str, str]
) -> AsyncIterator[RunPool]:
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    key = default_api_key(record.api_key_env, environ)
    async with _llm(record, base_url, key) as llm, _Ends(llm) as ends:
        capacity = record.concurrency or _CONCURRENCY
        yield RunPool(llm, lambda: capacity, ends.report_end, at=(base_url, key))


@asynccontextmanager
async def embedded_service(
    record: RunRecord,
    engines: Sequence[EngineSettings],
    log_dir: str | None,
    host: str | None = None,
) -> AsyncIterator[tuple["Service", RunPool]]:
    """Yield a Kairos on free ports, which lets nobody else in."""
    from kairos.service import running

    key = secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    settings = load_settings(
        None,
        {},
        {
            "port": 0,
            "admin_port": 0,
            "engine": list(engines),
            "key": [KeySettings(sha256=digest, tenant=TENANT)],
            "answer_s": _ANSWER_S,
            **({} if host is None else {"host": host}),
            "log_dir": log_dir,
        },
    )
    async with running(settings) as service, _llm(record, f"{service.url}/v1", key) as llm:

        def end(workflow_id: str) -> None:
            service.brain.feed(WorkflowEnded(TENANT, workflow_id))

        pool = RunPool(
            llm,
            _capacity(service, record.concurrency),
            end,
            problems=partial(_problems, service),
            at=(f"{service.url}/v1", key),
        )
        yield service, pool


def _problems(service: "Service") -> list[str]:
    """Return the problems of the engines, if none can take a call."""
    found, balancer = service.monitor.problems, service.brain.balancer
    said = [f"{name}: {problem}" for name, problem in found.items() if problem != NOT_PROBED]
    for name in balancer.ledger.instances:
        if balancer.faults.circuits.state(name, service.brain.now()) == "closed":
            return []
        said.append(f"{name}: it failed calls, and is tried again soon")
    return said


async def _joined(service: "Service") -> None:
    """Wait until an engine is there, and each has answered or failed.

    All served models are known then. An engine that failed may join later.
    """
    until = asyncio.get_running_loop().time() + JOIN_S
    monitor = service.monitor
    while not monitor.models() or NOT_PROBED in monitor.problems.values():
        if asyncio.get_running_loop().time() > until:
            if monitor.models():
                return
            problems = "; ".join(f"{k}: {v}" for k, v in monitor.problems.items())
            raise SetupError(f"no engine can be used: {problems}")
        await asyncio.sleep(0.02)


def _capacity(service: "Service", given: int | None) -> Callable[[], int]:
    def capacity() -> int:
        instances = service.brain.balancer.ledger.instances.values()
        return given or sum(each.max_num_seqs for each in instances)

    return capacity


def _kv_tokens(service: "Service", engines: int) -> int | None:
    """Return the KV tokens of all engines; an engine that joins later is assumed to be average."""
    known = [each.kv_tokens for each in service.brain.balancer.ledger.instances.values()]
    told = [each for each in known if each is not None]
    return engines * sum(told) // len(told) if told and len(told) == len(known) else None


def _llm(record: RunRecord, base_url: str, key: str | None) -> "HttpLLM":
    from kairos.proxy import HttpLLM, Patience

    patience = Patience(PATIENCE_S)
    return HttpLLM(base_url, key, model=record.model, timeout_s=_QUEUE_S, patience=patience)


async def default_model(llm: "HttpLLM", named: str | None, models: tuple[str | None, ...]) -> str:
    """The model of calls that name none, after all that are named were found to be served.

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

    def __init__(self, llm: "HttpLLM") -> None:
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
