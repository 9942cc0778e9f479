"""Engines of a run, behind a Kairos of its own on free ports."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kairos.core import SetupError, WorkflowEnded
from kairos.engines import NOT_PROBED
from kairos.settings import KeySettings, load_settings, parse_engine
from kairos.workflows import RunPool, RunRecord, open_llm

if TYPE_CHECKING:  # `kairos plan` reads this module and calls nothing: 0.2 CPU s less
    from kairos.service import Service

JOIN_S = 30.0
_ANSWER_S = 3600  # for an answer that is not streamed
_TENANT = "default"


@asynccontextmanager
async def serve_engines(
    record: RunRecord, log_dir: str | None = None, host: str | None = None
) -> AsyncIterator[RunPool]:
    """Yield a pool of a record's engines; their Kairos admits nobody else.

    Without engines the pool gets them later, by its fleet. Without `host` the Kairos listens for
    this host alone. Raises SetupError: no engine can be used.
    """
    from kairos.service import running

    engines = [parse_engine(text) for text in record.engines]
    key = secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    settings = load_settings(
        None,
        {},
        {
            "port": 0,
            "admin_port": 0,
            "engine": engines,
            "key": [KeySettings(sha256=digest, tenant=_TENANT)],
            "answer_s": _ANSWER_S,
            **({} if host is None else {"host": host}),
            "log_dir": log_dir,
        },
    )
    async with running(settings) as service, open_llm(record, f"{service.url}/v1", key) as llm:

        def end(workflow_id: str) -> None:
            service.brain.feed(WorkflowEnded(_TENANT, workflow_id))

        def capacity() -> int:
            instances = service.brain.balancer.ledger.instances.values()
            return record.concurrency or sum(each.max_num_seqs for each in instances)

        pool = RunPool(
            llm,
            capacity,
            end,
            problems=partial(_problems, service),
            at=(f"{service.url}/v1", key),
            fleet=service.fleet,
        )
        if engines:
            await _joined(service)
            pool = msgspec.structs.replace(
                pool,
                kv_tokens=_kv_tokens(service, len(engines)),
                instances=len(engines),
                caches_prefixes=service.monitor.caches_prefixes(),
            )
        yield pool


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


def _kv_tokens(service: "Service", engines: int) -> int | None:
    """Return the KV tokens of all engines; an engine that joins later is assumed to be average."""
    known = [each.kv_tokens for each in service.brain.balancer.ledger.instances.values()]
    told = [each for each in known if each is not None]
    return engines * sum(told) // len(told) if told and len(told) == len(known) else None
