"""How flows are carried out that Kairos is compared with, after Helium's paper (7.1, 7.3).

All run in one simulator, on the same engines, with the same rows and answers. A balancer before the
engines holds back what does not fit, where the paper's baselines let engines queue; and all calls
of a flow go through one executor, which has two windows of them in flight. Both are generous.

- `undeclared kairos`: the calls as agents would make them, none merged, by Kairos's own order and
  placement.
- `langgraph-like`: the same, first come, first served, to the engine with most memory free.
- `opwise`: the same, one operator after the other: the next begins when all rows have the one
  before, as Spark and Dask do.
- `lspf`: as LangGraph, and of what waits the longest prefix that an engine has goes first. What
  that is, is looked at when a call arrives and once a second, not at each step.
- `parrot-like`: first come, first served, to the engine that has most of the prompt.
- `kvflow-like`: as LangGraph, and each engine has what operators' prompts begin with from the
  start, and keeps it. Of other prompts the oldest make room, not those whose next use is furthest.

Real engines can be given some of them, too (`experiments/flows_vllm.py`).
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import takewhile

import msgspec

from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from experiments.flow_workloads import FlowWorkload
from kairos.core import EngineProfile, Ledger, Placement, Policy, Request, WorkEstimates
from kairos.core.scheduler.policies import Key
from kairos.engines import load_profile
from kairos.simulate.flow_answers import beginning_of
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import PoolOptions, SimulatedFlow, simulate_flow
from kairos.simulate.workload.prompt import Prompt
from kairos.workflows import Functions, Generation, Passes, Plan
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import MessageTemplate
from kairos.workflows.compile.templates import Static, template
from kairos.workflows.execute.facts import OperatorsOpened

KAIROS, UNDECLARED, LANGGRAPH = "kairos", "undeclared kairos", "langgraph-like"
OPWISE, PARROT = "opwise", "parrot-like"
OTHERS = (UNDECLARED, LANGGRAPH, OPWISE, "lspf", PARROT, "kvflow-like")
# Parts of Kairos, each of which may be off.
PARTS = ("kv", "pruning", "prompt cache", "order")

AS_DECLARED = Passes(**dict.fromkeys(Passes.__struct_fields__, False))
_PASSES = {
    "pruning": Passes(prune=False, cse=False),
    "prompt cache": Passes(cached=False),
    "order": Passes(order=False),
}
KV_TOKENS = 65_536
_ENGINE = msgspec.structs.replace(load_profile("h200-llama3-8b"), kv_tokens=KV_TOKENS)
_INSTANCES = 2

Results = MutableMapping[str, object]


def run(
    workload: FlowWorkload,
    system: str,
    rows: Sequence[Mapping[str, object]],
    *,
    without: str = "",
    results: Results | None = None,
    engine: EngineProfile = _ENGINE,
    instances: int = _INSTANCES,
) -> SimulatedFlow:
    """`without`: a part of Kairos that is off; `results`: of earlier days, which it alone uses."""
    is_declared = system == KAIROS
    passes = _PASSES.get(without, Passes()) if is_declared else AS_DECLARED
    plan = workload.flow.compile(passes)
    policy, placement = _policy(system)
    pool = msgspec.structs.replace(
        engines(policy, placement),
        instances=instances,
        profile=msgspec.structs.replace(engine, prefix_caching=without != "kv"),
        client=_client(system),
        held=static_beginnings(plan) if system == "kvflow-like" else (),
    )
    return simulate_flow(plan, iter(rows), Functions(), pool, results=results)


def engines(
    policy: Callable[[WorkEstimates], Policy], placement: Callable[[Ledger], Placement]
) -> PoolOptions:
    """Two, of 65,536 tokens."""
    return PoolOptions(instances=_INSTANCES, profile=_ENGINE, policy=policy, placement=placement)


def _client(system: str) -> type[FlowClient]:
    if system == KAIROS:
        return FlowClient
    return OperatorWise if system == OPWISE else Undeclared


def _policy(
    system: str,
) -> tuple[Callable[[WorkEstimates], Policy], Callable[[Ledger], Placement]]:
    if system == "lspf":
        return longest_prefix_first()
    policy, placement = policy_and_placement(system)
    return POLICIES[policy], PLACEMENTS[placement]


def policy_and_placement(system: str) -> tuple[str, str]:
    """Of the balancer before the engines, by their names; `lspf` has an order of its own."""
    if system in (KAIROS, UNDECLARED):
        return "kairos", "kairos"
    return "fcfs", "affinity" if system == PARROT else "least-kv"


class Undeclared(FlowClient):
    """Its calls come as agents would make them: nobody says what follows."""

    def declare(self) -> None:
        pass


class OperatorWise(Undeclared):
    """One operator after the other, each for all rows, in an order in which each follows what it
    needs."""

    def __init__(self, plan: Plan, *given: object, **named: object) -> None:
        super().__init__(plan, *given, **named)  # type: ignore[arg-type]
        self._left = asking_operators(plan)
        self._at = next(self._left)
        self.handle_fact(OperatorsOpened(frozenset((self._at,))))

    def finish_call(self, request_id: str, cached_tokens: int) -> None:
        super().finish_call(request_id, cached_tokens)
        wanted = self.executor.gate.wanted
        before = self._at
        while not wanted.get(self._at) and (following := next(self._left, None)) is not None:
            self._at = following
        if self._at != before:
            self.handle_fact(OperatorsOpened(frozenset((self._at,))))


def asking_operators(plan: Plan) -> Iterator[str]:
    """LLM operators by their names, each after what it needs."""
    return (
        each.name
        for each in every_operator(plan.declaration.operators)
        if isinstance(each.params, Generation)
    )


def longest_prefix_first() -> tuple[
    Callable[[WorkEstimates], Policy], Callable[[Ledger], Placement]
]:
    """The policy and the placement of one run, which share what is known of caches."""
    order = LongestPrefix()

    def placement(ledger: Ledger) -> Placement:
        order.ledger = ledger
        return PLACEMENTS["least-kv"](ledger)

    return lambda _: order, placement


class LongestPrefix:
    ledger: Ledger

    def key(self, request: Request, state: int, /) -> Key:
        return -state, request.arrived_at

    def state(self, request: Request) -> int:
        return max(self.ledger.prefixes.match(request).values(), default=0)

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None


def static_beginnings(plan: Plan) -> tuple[Prompt, ...]:
    """What prompts of operators begin with, as far as whole messages are the same for all rows."""
    found: dict[Prompt, None] = {}
    for each in every_operator(plan.declaration.operators):
        if isinstance(each.params, Generation):
            fixed = takewhile(_is_static, each.params.messages)
            said = [{"role": message.role, "content": message.template} for message in fixed]
            found[beginning_of(said)] = None
    return tuple(each for each in found if each)


def _is_static(message: MessageTemplate) -> bool:
    return all(isinstance(each, Static) for each in template(message.template).segments)
