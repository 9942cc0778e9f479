"""Agents as a separate process on Kafka, and submission of tasks from outside."""

import asyncio
import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import msgspec

from kairos.agents import runtime as agent
from kairos.agents.bus_llm import BusLLM, reply_topic
from kairos.agents.runtime import LLM, Application
from kairos.cluster import KafkaBus, KafkaCluster, Tail, Value, ensure_topics
from kairos.core import SECOND, InvalidRequest, SetupError, Topic, Unavailable
from kairos.proxy import HttpLLM, Patience

PATIENCE_S = 600  # with an LLM server that accepts no calls
_START_S = 60  # for a gateway that starts at the same time
_GLANCE_S = 1

Say = Callable[[str], None]


class SubmissionPlan(msgspec.Struct, frozen=True, kw_only=True):
    applications: tuple[Application, ...]
    inboxes: tuple[str, ...]  # of the agents to run
    cluster: KafkaCluster
    concurrency: int
    url: str | None  # of the LLM's server; None: calls go over the bus
    api_key: str | None = None
    model: str | None = None  # None: the server's first, or over the bus any
    pool: str = "default"
    replies: str | None = None  # the last part of the topic for replies; None: the host's name


def load_application(module: str) -> Application:
    """Import a module by its name, and return its `app`.

    Raises:
        SetupError: the module does not exist, cannot be imported, or has no application.
    """
    if module.endswith(".py") or "/" in module:
        name = module.removesuffix(".py").replace("/", ".").strip(".")
        raise SetupError(f"'{module}' is a file: name the module, as in `import {name}`")
    try:
        app = getattr(importlib.import_module(module), "app", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise SetupError(
                f"'{module}' needs the module '{error.name}', which is not here"
            ) from None
        raise SetupError(
            f"there is no module '{module}' in this directory or among what is installed"
        ) from None
    except Exception as error:  # whatever the module does
        raise SetupError(
            f"'{module}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(app, Application):
        raise SetupError(f"'{module}' has no `app` that is a kairos.agent.Application")
    return app


def choose_inboxes(applications: Sequence[Application], named: Iterable[str]) -> tuple[str, ...]:
    """Return the inboxes of the agents named as `app.agent`; of all agents if none is named.

    Raises:
        SetupError: an agent does not exist, or two applications have one name.
    """
    names = [app.name for app in applications]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise SetupError(f"two of the modules call their application '{doubled.pop()}'")
    inboxes = {f"{app.name}.{name}": app.inbox(name) for app in applications for name in app.agents}
    if unknown := [name for name in named if name not in inboxes]:
        raise SetupError(f"there is no agent '{unknown[0]}'; there are: {', '.join(inboxes)}")
    return tuple(inboxes[name] for name in named) or tuple(inboxes.values())


async def run_agents(plan: SubmissionPlan, say: Say) -> None:
    """Run the agents until cancelled; other processes take over their unfinished work.

    Raises:
        SetupError: Kafka or the LLM's server cannot be used; the message says what to do.
    """
    # All inboxes, not only those of agents that run here: these agents may write to the others.
    inboxes = [app.inbox(name) for app in plan.applications for name in app.agents]
    over_bus = [Topic.REQUESTS, reply_topic(plan.replies)] if plan.url is None else []
    await ensure_topics(plan.cluster, [*inboxes, Topic.RESULTS, Topic.DEAD_LETTERS, *over_bus])
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(KafkaBus(plan.cluster))
        llm = await _llm(plan, stack, say)
        names = ", ".join(inbox.split(".", 2)[2] for inbox in plan.inboxes)
        say(f"ready: running {names}; up to {plan.concurrency} workflows each")
        await agent.run(
            plan.applications, bus, llm, concurrency=plan.concurrency, only=plan.inboxes
        )


async def _llm(plan: SubmissionPlan, stack: AsyncExitStack, say: Say) -> LLM:
    patience = Patience(PATIENCE_S)
    if plan.url is None:
        over_bus = BusLLM(
            plan.cluster, pool=plan.pool, name=plan.replies, model=plan.model, patience=patience
        )
        say(f"LLM calls go to the pool '{plan.pool}', replies come on {over_bus.replies}")
        return await stack.enter_async_context(over_bus)
    base_url = plan.url.rstrip("/").removesuffix("/v1") + "/v1"
    model = plan.model
    if model is None:
        async with HttpLLM(base_url, plan.api_key) as server:
            model = await _first_model(server, base_url, say)
    say(f"LLM calls go to {base_url}, model {model}")
    return await stack.enter_async_context(
        HttpLLM(base_url, plan.api_key, model=model, patience=patience)
    )


async def _first_model(server: HttpLLM, base_url: str, say: Say) -> str:
    until = time.monotonic() + _START_S
    is_told = False
    while True:
        try:
            if models := await server.models():
                return models[0]
            problem = "it offers no model yet"
        except Unavailable as error:
            problem = str(error)
        if time.monotonic() > until:
            raise SetupError(f"{base_url} cannot be used after {_START_S} s: {problem}")
        if not is_told:
            say(f"waiting for {base_url}: {problem}")
            is_told = True
        await asyncio.sleep(_GLANCE_S)


async def submit_tasks(
    app: Application,
    values: Sequence[Value],
    cluster: KafkaCluster,
    show: Callable[[agent.Result], None],
    *,
    msg_id: str | None,
    deadline_s: float | None,
    wait_s: float,
) -> list[str]:
    """Submit tasks, and show each result as it comes; return the ids of tasks without a result.

    `msg_id`: of the only task. Results are awaited for `wait_s`.

    Raises:
        SetupError: Kafka cannot be used.
        KairosError: a task is too large, or the msg_id is not valid.
    """
    await ensure_topics(cluster, [app.inbox(app.entry), Topic.RESULTS])
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(KafkaBus(cluster))
        results = None
        if wait_s > 0:
            results = await stack.enter_async_context(Tail(cluster, Topic.RESULTS))
        missing: dict[str, None] = {}
        for value in values:
            now_us = time.time_ns() // 1000
            ends_us = None if deadline_s is None else now_us + int(deadline_s * SECOND)
            name = await agent.submit(
                bus, app, value, now_us=now_us, msg_id=msg_id, deadline_us=ends_us
            )
            missing[name] = None
        if results is not None:
            try:
                async with asyncio.timeout(wait_s):
                    await _collect(results, missing, show)
            except TimeoutError:
                pass  # the caller learns which
        return list(missing)


async def _collect(
    results: Tail, missing: dict[str, None], show: Callable[[agent.Result], None]
) -> None:
    """Show the first result of each missing workflow, until all are there."""
    while missing:
        for message in await results.batch():
            if message.key not in missing:
                continue
            try:
                result = agent.read_result(message)
            except InvalidRequest:
                continue  # anybody may write there
            del missing[message.key]
            show(result)
