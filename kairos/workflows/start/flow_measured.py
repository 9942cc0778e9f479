"""Measurements for the profile of a flow, made with what one of its runs asked for.

Durations of batches: of engines that embed and rank, of collections and functions. And factors of
a placement's cost (Halo's lambda and beta): `reuse` follows from the calls themselves, from what a
prompt has in common with one of its row that was answered before, against what the engine reports
as found. `sharing` takes calls of its own: some of the run's prompts at one engine alone, then as
many for each at all engines concurrently.
"""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from kairos.core import SECOND, Header, KairosError
from kairos.workflows.compile.batches import BatchProfile, batch_key, efficient_size
from kairos.workflows.compile.flow_profile import CostFactors
from kairos.workflows.compile.flow_work import ContextCall, measured_reuse
from kairos.workflows.compile.operators import Embedding, Ingest, RegisteredCall, Rerank
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.declare.functions import FunctionFailed, Functions
from kairos.workflows.execute.commands import IssueCall, RunFunction, RunProcessor
from kairos.workflows.execute.facts import CallAnswered, FlowFact
from kairos.workflows.execute.observation import Calling, Timeline
from kairos.workflows.run.calls import ChatLLM
from kairos.workflows.run.chat_answer import read_chat
from kairos.workflows.run.function_batches import FunctionBatches
from kairos.workflows.run.pool import OpenEngines, default_model, open_pool
from kairos.workflows.run.processing import Processors
from kairos.workflows.run.run_store import RunRecord

MOST_ITEMS = 512  # of a batch
_TIMES, _ONCE_S = 3, 0.5  # that a batch of one size is tried; slower ones once
_TIME_S = 30.0  # for all batches of one processor or function
_NEAR = 8  # the largest batch is found to an eighth
_LESS, _WORSE = 0.9, 2  # of the best throughput: two sizes below, and no larger one is tried
_KEPT = 512  # texts, or arguments, of one processor or function

Sized = Callable[[int], Awaitable[object]]
Clock = Callable[[], float]

_CALLS = 32  # at each engine, side by side
_FACTOR_TIMES = 3  # that each number of engines is tried
_FACTORS_S = 60.0  # in which tries begin

Ask = Callable[[Mapping[str, Any]], Awaitable[int]]  # returns the tokens of the answer


class AskedOfRun(Timeline):
    """First calls of a run's models, processors and batched functions, to measure with."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: dict[str, Calling] = {}  # the first, by batch key
        self.items: dict[str, list[Any]] = {}  # texts and arguments, by batch key
        self.bodies: list[Mapping[str, Any]] = []
        self.calls: list[ContextCall] = []

    def begin_call(self, command: Calling, at_us: int) -> None:
        """Keep the first prompts, and the items of a command whose kind is batched."""
        super().begin_call(command, at_us)
        if isinstance(command, IssueCall) and len(self.bodies) < _CALLS:
            named = {} if command.model is None else {"model": command.model}
            self.bodies.append({**named, **command.body})
        if (key := _key(command)) is None:
            return
        self.commands.setdefault(key, command)
        kept = self.items.setdefault(key, [])
        if len(kept) < _KEPT:
            kept += _items(command)[: _KEPT - len(kept)]

    def record_fact(self, fact: FlowFact, at_us: int) -> None:
        """Note what was found of a prompt."""
        if isinstance(fact, CallAnswered) and fact.call in self._begun:
            command, begun_us = self._begun[fact.call]
            if isinstance(command, IssueCall):
                self.calls.append(
                    ContextCall(
                        row=(command.stage, command.row),
                        operator=command.operator,
                        begun_us=begun_us,
                        ended_us=at_us,
                        prompt_tokens=fact.prompt_tokens,
                        cached_tokens=fact.cached_tokens,
                    )
                )
        super().record_fact(fact, at_us)


async def measured_batches(
    asked: AskedOfRun,
    processors: Processors | None,
    functions: Functions,
    clock: Clock = time.perf_counter,
) -> dict[str, BatchProfile]:
    """Measure batches of 1, 2, 4 ... items with what a run asked for, one batch at a time.

    Ends for a processor or function where throughput falls, after `MOST_ITEMS`, or after some
    seconds. Functions with effects are left out. Of collections the passages that were put there
    are put there once more, which changes nothing.
    """
    found = {}
    for key, command in asked.commands.items():
        items = asked.items[key]
        if isinstance(command, RunFunction):
            if functions[command.function].purity == "effect":
                continue
            batches = FunctionBatches()
            try:
                ask = _function(command, functions, items, batches)
                latency = await curve(ask, MOST_ITEMS, clock)
            finally:
                await batches.close()
        elif isinstance(command, RunProcessor) and processors is not None:
            most = len(items) if command.kind == "ingest" else MOST_ITEMS
            latency = await curve(_processor(command, items, processors), most, clock)
        else:
            continue
        if latency:
            found[key] = BatchProfile(latency, efficient_size(latency))
    return found


async def curve(
    ask: Sized, most: int = MOST_ITEMS, clock: Clock = time.perf_counter
) -> dict[int, float]:
    """Return the µs that batches take, by items: 1, 2, 4 ..., and the largest, as they succeed."""
    latency: dict[int, float] = {}
    items, best, refused, worse = 1, 0.0, most + 1, 0
    if not await _done(ask, 1):  # the first may load something
        return latency
    until_s = clock() + _TIME_S
    while clock() < until_s:
        us = await _took(ask, items, clock)
        if us is None:
            refused = items
        else:
            latency[items] = us
            throughput = items / max(us, 1.0)
            worse = worse + 1 if throughput < _LESS * best else 0
            if worse == _WORSE:
                break
            best = max(best, throughput)
        largest = max(latency, default=0)
        items = 2 * largest if 2 * largest < refused else (largest + refused) // 2
        if items - largest < max(1, largest // _NEAR):
            break
    return latency


async def _done(ask: Sized, items: int) -> bool:
    try:
        await ask(items)
    except (KairosError, FunctionFailed):
        return False
    return True


async def _took(ask: Sized, items: int, clock: Clock) -> float | None:
    """Return the least µs that a batch takes; None: it is refused."""
    took: list[float] = []
    while len(took) < _TIMES and (not took or took[0] < _ONCE_S * SECOND):
        began_s = clock()
        if not await _done(ask, items):
            return None
        took.append((clock() - began_s) * SECOND)
    return min(took)


def _processor(command: RunProcessor, items: Sequence[Any], processors: Processors) -> Sized:
    number = 0

    async def ask(count: int) -> object:
        nonlocal number
        taken = [items[at % len(items)] for at in range(number, number + count)]
        number += count
        arguments: dict[str, Any]
        match command.kind:
            case "embed":
                # Numbered, so that no engine knows one from before.
                arguments = {"texts": [f"{number} {each}" for each in taken], "batch": count}
            case "rerank":
                passages = [f"{number}-{at} {each}" for at, each in enumerate(taken)]
                asked = command.arguments["query"]
                arguments = {"query": asked, "passages": passages, "top_k": 1, "batch": count}
            case _:
                told = {"collection": command.arguments["collection"]}
                texts, vectors = [each[0] for each in taken], [each[1] for each in taken]
                arguments = {"texts": texts, "vectors": vectors, **told}
        return await processors.run(
            msgspec.structs.replace(command, arguments=arguments, stays=False, held={})
        )

    return ask


def _function(
    command: RunFunction, functions: Functions, items: Sequence[Any], batches: FunctionBatches
) -> Sized:
    known = functions[command.function]

    async def ask(count: int) -> object:
        calls = [items[at % len(items)] for at in range(count)]
        queries = (batches.value(command.function, known, each, count, (0,), 0) for each in calls)
        return await asyncio.gather(*queries)

    return ask


def _key(command: Calling) -> str | None:
    match command:
        case RunProcessor(kind="embed"):
            return batch_key(Embedding(command.model))
        case RunProcessor(kind="rerank"):
            return batch_key(Rerank(model=command.model))
        case RunProcessor(kind="ingest", arguments={"collection": str()}) if not command.held:
            return batch_key(Ingest())
        case RunFunction(batch=int()):
            return batch_key(RegisteredCall(command.function))
    return None


def _items(command: Calling) -> list[Any]:
    match command:
        case RunFunction(arguments=arguments):
            return [arguments]
        case RunProcessor(kind="embed", arguments=arguments):
            return _listed(arguments["texts"])
        case RunProcessor(kind="rerank", arguments=arguments):
            passages = _listed(arguments["passages"])
            return [each["text"] if isinstance(each, Mapping) else each for each in passages]
        case RunProcessor(arguments=arguments):
            texts, vectors = _listed(arguments["texts"]), _listed(arguments["vectors"])
            return list(zip(texts, vectors, strict=True))
    return []


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def measured_factors(
    plan: Plan, record: RunRecord, asked: AskedOfRun, open_engines: OpenEngines
) -> CostFactors:
    """Return the factors that could be measured of a run that has ended."""
    reuse = measured_reuse(plan.declaration.operators, asked.calls)
    sharing = None
    if len(record.engines) > 1 and asked.bodies:
        sharing = await _engines_sharing(plan, record, asked.bodies, open_engines)
    return CostFactors(reuse=reuse, sharing=sharing)


async def measured_sharing(
    bodies: Sequence[Mapping[str, Any]],
    alone: Ask,
    together: Ask,
    engines: int,
    clock: Clock = time.perf_counter,
) -> float | None:
    """Return beta: k engines side by side are as quick as k to this power; None: a call failed.

    Each engine has as many calls at once as there are bodies, whether it is alone or not, so that
    batches are alike. Each prompt has a beginning of its own, so that nothing of it is cached. The
    best of some tries counts, in tokens of answers a second.

    Args:
        bodies: of chat completions; at least one.
        alone: makes a call at one engine.
        together: makes a call at whichever engine has room.
        engines: at least two.
        clock: seconds.
    """
    best, number, until_s = {1: 0.0, engines: 0.0}, 0, clock() + _FACTORS_S
    for _ in range(_FACTOR_TIMES):
        for count, ask in ((1, alone), (engines, together)):
            several = [_numbered(each, number + at) for at, each in enumerate([*bodies] * count)]
            number += len(several)
            began_s = clock()
            try:
                tokens = await asyncio.gather(*(ask(body) for body in several))
            except KairosError:
                return None
            rate = sum(tokens) / max(1e-9, clock() - began_s)
            best[count] = max(best[count], rate)
        if clock() > until_s:
            break
    if not min(best.values()):
        return None
    return min(1.0, max(0.0, math.log(best[engines] / best[1], engines)))


async def _engines_sharing(
    plan: Plan, record: RunRecord, bodies: Sequence[Mapping[str, Any]], open_engines: OpenEngines
) -> float | None:
    """Return how engines share load; None if they serve different models, or fail."""
    one = msgspec.structs.replace(record, engines=record.engines[:1])
    try:
        async with (
            open_pool(one, os.environ, open_engines) as first,
            open_pool(record, os.environ, open_engines) as all_of,
        ):
            for pool in (first, all_of):
                pool.llm.use_model(await default_model(pool.llm, record.model, plan.models))
            engines = len(record.engines)
            return await measured_sharing(bodies, _ask(first.llm), _ask(all_of.llm), engines)
    except KairosError:
        return None


def _ask(llm: ChatLLM) -> Ask:
    number = 0

    async def ask(body: Mapping[str, Any]) -> int:
        nonlocal number
        number += 1
        name = f"sharing-{number}"
        headers = {
            Header.REQUEST_ID: name,
            Header.WORKFLOW_ID: name,
            Header.APP: "profile",
            Header.AGENT: "sharing",
        }
        answer = read_chat(await llm.complete({**body}, {**headers, Header.ATTEMPT: "1"}))
        return answer.completion_tokens or 1

    return ask


def _numbered(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    first, *others = body["messages"]
    if isinstance(first.get("content"), str):
        first = {**first, "content": f"{number} {first['content']}"}
    return {**body, "messages": [first, *others]}
