"""Costs of a plan's calls by the papers' models instead of a profile: `--cost paper`.

Halo: every operator is replicated on all instances, which have the model already; one whose prompts
begin as the preceding operator's do reuses its context. e_v is the fluid cost of all its calls
on one instance. Helium: rows are dealt to instances in turn, and each takes its calls row by row.
"""

from collections.abc import Sequence

import msgspec

from experiments.halo_cost import ReuseFactors, WorkerOperator, placement_us
from experiments.token_steps import token_steps
from kairos.core import SECOND, CallShape, EngineProfile
from kairos.workflows.compile.call_shapes import PromptSegment, ScheduledCall
from kairos.workflows.compile.costs.fluid import makespan_us
from kairos.workflows.compile.fluid_engine import FluidCall


class PaperCosts(msgspec.Struct, frozen=True):
    halo_s: float
    token_steps: float


def paper_costs(
    calls: Sequence[FluidCall], operators: Sequence[str], engine: EngineProfile, instances: int
) -> PaperCosts:
    """`operators`: of each call."""
    by_operator: dict[str, list[FluidCall]] = {}
    for name, call in zip(operators, calls, strict=True):
        by_operator.setdefault(name, []).append(call)
    worker, before = [], None
    for found in by_operator.values():
        begins = {each.prefixes[0][0] for each in found if each.prefixes}
        worker.append(
            WorkerOperator(
                inference_us=makespan_us(engine, _shape(found), len(found)),
                replicas=instances,
                reuses_model=True,
                reuses_context=before is not None and bool(begins & before),
            )
        )
        before = begins
    halo_us = placement_us([worker] * instances, (), ReuseFactors())
    return PaperCosts(halo_us / SECOND, _steps(calls, engine, instances))


def _shape(calls: Sequence[FluidCall]) -> CallShape:
    return CallShape(
        prompt=sum(each.prompt_tokens for each in calls) / len(calls),
        answer=sum(each.completion_tokens for each in calls) / len(calls),
    )


def _steps(calls: Sequence[FluidCall], engine: EngineProfile, instances: int) -> float:
    scheduled = {str(at): _scheduled(call) for at, call in enumerate(calls)}
    schedule = [
        [str(at) for at, call in enumerate(calls) if call.row % instances == worker]
        for worker in range(instances)
    ]
    return token_steps(schedule, scheduled, [engine.kv_tokens] * instances)


def _scheduled(call: FluidCall) -> ScheduledCall:
    segments, before = [], 0.0
    for name, tokens in call.prefixes:
        segments.append(PromptSegment(str(name), round(tokens) - round(before)))
        before = tokens
    return ScheduledCall(
        tuple(segments), max(1, round(call.completion_tokens)), tuple(map(str, call.after))
    )
