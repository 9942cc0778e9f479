"""Factors of a placement's cost, measured with the calls of a run (Halo's lambda and beta).

`reuse` follows from the calls themselves: what a prompt has in common with one of its row that was
answered before, against what the engine says it has found. `sharing` takes calls of its own: some
of the run's prompts, at one engine alone, then as many for each at all engines side by side.
"""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from kairos.cli.flows.call_pool import call_pool, default_model
from kairos.cli.flows.flow_batches import AskedItems, Clock
from kairos.core import Header, KairosError
from kairos.workflows import (
    CallAnswered,
    Calling,
    ChatLLM,
    ContextCall,
    CostFactors,
    FlowFact,
    IssueCall,
    Plan,
    RunRecord,
    measured_reuse,
    read_chat,
)

_CALLS = 32  # at each engine, side by side
_TIMES = 3  # that each number of engines is tried
_TIME_S = 60.0  # in which tries begin

Ask = Callable[[Mapping[str, Any]], Awaitable[int]]  # returns the tokens of the answer


class AskedCalls(AskedItems):
    """Keep a run's calls of processors, functions and models, to measure with them."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[Mapping[str, Any]] = []
        self.calls: list[ContextCall] = []

    def begun(self, command: Calling, at_us: int) -> None:
        """Keep the first prompts."""
        super().begun(command, at_us)
        if isinstance(command, IssueCall) and len(self.bodies) < _CALLS:
            named = {} if command.model is None else {"model": command.model}
            self.bodies.append({**named, **command.body})

    def told(self, fact: FlowFact, at_us: int) -> None:
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
        super().told(fact, at_us)


async def measured_factors(plan: Plan, record: RunRecord, asked: AskedCalls) -> CostFactors:
    """Return the factors that could be measured of a run that has ended."""
    reuse = measured_reuse(plan.declaration.operators, asked.calls)
    sharing = None
    if len(record.engines) > 1 and asked.bodies:
        sharing = await _engines_sharing(plan, record, asked.bodies)
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
    best, number, until_s = {1: 0.0, engines: 0.0}, 0, clock() + _TIME_S
    for _ in range(_TIMES):
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
    plan: Plan, record: RunRecord, bodies: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return how engines share load; None if they serve different models, or fail."""
    one = msgspec.structs.replace(record, engines=record.engines[:1])
    try:
        async with call_pool(one, os.environ) as first, call_pool(record, os.environ) as all_of:
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
