"""What tenants get of a pool beside each other, in virtual time: `python -m bench.fairness`,
half an hour.

Each tenant asks for workflows of its own kind, of modelled engines (`simulate/engine`): so many at
once, the next as one ends, or so many a second. With shares (fair) beside the order of work left
alone (unfair). Nothing is measured of this machine: the same seed gives the same figures.
"""

import statistics
from collections.abc import Mapping
from functools import partial
from random import Random
from statistics import fmean, quantiles
from typing import Literal, get_args

import msgspec
from rich.console import Console

from bench.command import Bench
from bench.report import Figure, Spread
from bench.virtual_pool import VirtualPool
from kairos.core import (
    EXPECTED_COMPLETION_TOKENS,
    SECOND,
    Arrived,
    Dispatch,
    EngineProfile,
    Finished,
    FirstToken,
    Refuse,
    Request,
    StepCost,
    TenantWeight,
    WorkflowEnded,
)
from kairos.simulate.engine.sequence import CallProgress, EngineCall
from kairos.simulate.workload.prompt import PromptPiece

STEP_US, PROMPT_TOKEN_US = 10_000, 20.0
Weights = Mapping[str, TenantWeight] | None  # None: the order of work left alone
NO_WEIGHTS: Weights = {}


# split: each call is a workflow of its own. older: workflows are said to have begun long ago.
# names: calls bear the name of an agent with which workflows end soon. limits: `max_tokens` of one.
Cheat = Literal["none", "split", "older", "names", "limits"]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    at_once: int = 0  # workflows; 0: `per_s` come, whatever is under way
    per_s: float = 0.0
    calls: int = 1  # of a workflow, one after the other
    prompt: tuple[int, int] = (50, 50)  # tokens of a call, at least and at most
    answer: tuple[int, int] = (10, 10)
    cheat: Cheat = "none"


class Under(msgspec.Struct):
    """A workflow under way."""

    id: str
    tenant: Tenant
    began: int
    left: int  # calls
    call_began: int = 0


class Pool(VirtualPool):
    """Instances that are alike, and tenants that use them for so long."""

    def __init__(
        self, tenants: list[Tenant], weights: Weights, *, instances: int, engine: EngineProfile
    ) -> None:
        super().__init__(weights, instances, engine)
        self._tenants = tenants
        self._under_way: dict[str, Under] = {}  # by id of the call
        self._calls: dict[str, tuple[int, int, int]] = {}  # prompt, answer, when it began to run
        self._number = 0
        self.latencies_s: dict[str, list[float]] = {each.name: [] for each in tenants}
        self.calls_s: dict[str, list[float]] = {each.name: [] for each in tenants}
        self.service_s: dict[str, float] = dict.fromkeys(self.latencies_s, 0.0)

    def play(self, seconds: float, seed: int) -> "Pool":
        self._dice = Random(seed)
        for tenant in self._tenants:
            for _ in range(tenant.at_once):
                self._begin(tenant)
            if tenant.per_s:
                self._expect(tenant)
        self.run(int(seconds * SECOND))
        return self

    def _expect(self, tenant: Tenant) -> None:
        after_s = self._dice.expovariate(tenant.per_s)
        at = self.clock.now() + int(after_s * SECOND)
        self.clock.call_at(at, partial(self._comes, tenant))

    def _comes(self, tenant: Tenant) -> None:
        self._begin(tenant)
        self._expect(tenant)

    def _begin(self, tenant: Tenant) -> None:
        self._number += 1
        name = f"{tenant.name}-{self._number}"
        self._call(Under(name, tenant, self.clock.now(), tenant.calls))

    def _call(self, workflow: Under) -> None:
        tenant, now = workflow.tenant, self.clock.now()
        name = f"{workflow.id}/{workflow.left}"
        workflow.call_began = now
        self._under_way[name] = workflow
        prompt = self._dice.randint(*tenant.prompt)
        self._calls[name] = prompt, self._dice.randint(*tenant.answer), 0
        request = Request(
            id=name,
            tenant=tenant.name,
            workflow_id=name if tenant.cheat == "split" else workflow.id,
            app="app",
            agent="agent 1" if tenant.cheat == "names" else f"agent {workflow.left}",
            model="m",
            workflow_started_at=0 if tenant.cheat == "older" else workflow.began,
            arrived_at=now,
            prompt_tokens=prompt,
            completion_tokens=EXPECTED_COMPLETION_TOKENS if tenant.cheat != "limits" else 1,
            completion_limit=None if tenant.cheat != "limits" else 1,
        )
        self.runtime.feed(Arrived(request))

    def dispatch(self, command: Dispatch) -> None:
        name = command.request_id
        prompt, answer, _ = self._calls[name]
        self._calls[name] = prompt, answer, self.clock.now()
        call = EngineCall(id=name, prompt=(PromptPiece(name, prompt),), completion_tokens=answer)
        self.fleet.add(command.instance_id, call)

    def refuse(self, command: Refuse) -> None:
        """It has waited for as long as it may: its workflow has failed, and the next one comes."""
        assert command.reason == "waited_too_long", command.reason
        self._calls.pop(command.request_id)
        workflow, now = self._under_way.pop(command.request_id), self.clock.now()
        tenant = workflow.tenant
        self.calls_s[tenant.name].append((now - workflow.call_began) / SECOND)
        self.latencies_s[tenant.name].append((now - workflow.began) / SECOND)
        if tenant.at_once:
            self.clock.call_at(now, partial(self._begin, tenant))

    def seen(self, progress: CallProgress) -> None:
        name = progress.call_id
        if progress.what == "first_token":
            self.runtime.feed(FirstToken(name))
            return
        prompt, answer, ran_at = self._calls.pop(name)
        workflow, now = self._under_way.pop(name), self.clock.now()
        tenant = workflow.tenant
        self.service_s[tenant.name] += self._service_s(prompt, answer, now - ran_at)
        self.calls_s[tenant.name].append((now - workflow.call_began) / SECOND)
        self.runtime.feed(Finished(name, prompt_tokens=prompt, completion_tokens=answer))
        workflow.left -= 1
        if workflow.left:
            self._call(workflow)
            return
        self.runtime.feed(WorkflowEnded(tenant.name, workflow.id))
        self.latencies_s[tenant.name].append((now - workflow.began) / SECOND)
        if tenant.at_once:
            self._begin(tenant)

    def _service_s(self, prompt: int, answer: int, took_us: int) -> float:
        """As `core/dispatcher/service_cost.py` has it, by what is true of the engine."""
        engine = self.engine
        memory = (prompt + answer / 2) / engine.kv_tokens
        held = max(1 / engine.max_num_seqs, memory)
        computing_us = prompt * engine.step.prefill_token_us
        return (computing_us + held * (took_us - computing_us)) / SECOND

    def waits_s(self, name: str) -> list[float]:
        """What a tenant's calls took; of those that have not ended, what they have by now."""
        now = self.clock.now()
        unfinished = [
            (now - each.call_began) / SECOND
            for each in self._under_way.values()
            if each.tenant.name == name
        ]
        return self.calls_s[name] + unfinished


def engine(seqs: int, kv_tokens: int, step_us: float = STEP_US) -> EngineProfile:
    return EngineProfile(
        name="bench",
        source="",
        measured=False,
        kv_tokens=kv_tokens,
        max_num_seqs=seqs,
        step=StepCost(fixed_us=step_us, prefill_token_us=PROMPT_TOKEN_US, decode_seq_us=10.0),
    )


EIGHT, SMALL = engine(8, 100_000), engine(8, 20_000, 40_000)
FEW_LONG = Tenant(name="a", at_once=4, answer=(100, 100))  # 1 s each
MANY_SHORT = Tenant(name="b", at_once=120)


def beside(weights: Weights, *tenants: Tenant, seconds: float = 120, seed: int = 0) -> Pool:
    return Pool(list(tenants), weights, instances=1, engine=EIGHT).play(seconds, seed)


def ten(dice: Random) -> list[Tenant]:
    """Of very different calls, each of which would fill the pool alone."""
    made = []
    for number in range(10):
        answer, prompt = dice.choice((10, 40, 150, 600)), dice.choice((50, 400, 3_000))
        made.append(
            Tenant(
                name=f"t{number}",
                at_once=dice.choice((30, 60, 120)),
                calls=dice.choice((1, 2, 5)),
                prompt=(prompt // 2, prompt),
                answer=(answer // 2, answer),
            )
        )
    return made


def coming(dice: Random) -> list[Tenant]:
    """Of such, who come at a rate that keeps a tenth of the pool nine tenths busy each."""
    made = []
    for each in ten(dice):
        answer, prompt = sum(each.answer) / 2, sum(each.prompt) / 2
        held = max(1 / SMALL.max_num_seqs, (prompt + answer / 2) / SMALL.kv_tokens)
        service_s = (held * answer * SMALL.step.fixed_us + prompt * PROMPT_TOKEN_US) / SECOND
        per_s = 0.9 / (each.calls * service_s)
        made.append(msgspec.structs.replace(each, at_once=0, per_s=per_s))
    return made


ORDERS: Mapping[str, Weights] = {"fair": NO_WEIGHTS, "unfair": None}


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares))


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[-1] if len(values) > 1 else values[0]


def alone_and_beside() -> list[Figure]:
    """Few long calls beside many short ones, on one engine of eight sequences."""
    alone = fmean(beside({}, FEW_LONG).waits_s("a"))
    unfair = fmean(beside(None, FEW_LONG, MANY_SHORT).waits_s("a"))
    fair = fmean(beside(NO_WEIGHTS, FEW_LONG, MANY_SHORT).waits_s("a"))
    return [
        Figure(
            name="a tenant's calls of 1 s beside another's 120 short ones at once",
            value=round(fair, 2),
            unit="s",
            target=1.3,
            detail={
                name: spread([each], 2)
                for name, each in (("alone", alone), ("unfair", unfair), ("fair", fair))
            },
        )
    ]


def weighted() -> list[Figure]:
    many = msgspec.structs.replace(FEW_LONG, at_once=60)
    pool = beside({"a": TenantWeight(3.0)}, many, MANY_SHORT, seconds=300)
    share = pool.service_s["a"] / sum(pool.service_s.values())
    return [
        Figure(
            name="off the share of weights 3 : 1",
            value=round(100 * abs(share - 0.75), 2),
            unit="% of the service",
            target=5.0,
        )
    ]


def backlogged(seeds: range, seconds: float) -> list[Figure]:
    """Ten tenants, each of which could fill the pool alone."""
    indices: dict[str, list[float]] = {"fair": [], "unfair": []}
    for seed in seeds:
        for name, weights in ORDERS.items():
            pool = Pool(ten(Random(seed)), weights, instances=2, engine=SMALL).play(seconds, seed)
            indices[name].append(jain(list(pool.service_s.values())))
    return [
        Figure(
            name="Jain's index of ten backlogged tenants of very different calls",
            value=round(min(indices["fair"]), 4),
            unit="",
            better="higher",
            target=0.98,
            detail={name: spread(found, 4) for name, found in indices.items()},
        )
    ]


def spread(values: list[float], digits: int) -> Spread:
    found = statistics.median(values), min(values), max(values)
    median, lowest, highest = (round(each, digits) for each in found)
    return Spread(median, lowest, highest, len(values))


def not_overloaded(seeds: range, seconds: float) -> list[Figure]:
    """Ten tenants on ten instances, nine tenths busy; each alone on one instance, to compare."""
    slower: list[float] = []
    tails: list[float] = []
    for seed in seeds:
        tenants = coming(Random(seed))
        fair, unfair = (
            Pool(tenants, weights, instances=10, engine=SMALL).play(seconds, seed)
            for weights in (NO_WEIGHTS, None)
        )
        means = {
            pool: fmean(fmean(pool.latencies_s[each.name]) for each in tenants)
            for pool in (fair, unfair)
        }
        slower.append(means[fair] / means[unfair])
        for each in tenants:
            own = Pool([each], NO_WEIGHTS, instances=1, engine=SMALL).play(seconds, seed)
            tails.append(p99(fair.latencies_s[each.name]) / p99(own.latencies_s[each.name]))
    return [
        Figure(
            name="mean latency of workflows, over that of the unfair order",
            value=round(fmean(slower), 3),
            unit="times",
            target=1.05,
            detail={"seeds": spread(slower, 3)},
        ),
        Figure(
            name="P99 latency of a tenant's workflows, over that with its share of the pool alone",
            value=round(max(tails), 2),
            unit="times",
            target=1.5,
            detail={"tenants": spread(tails, 2)},
        ),
    ]


def cheating(seeds: range, seconds: float) -> list[Figure]:
    """One of two tenants that want more than there is, whose calls are alike."""
    gains: dict[str, list[float]] = {}
    for seed in seeds:
        served: dict[str, float] = {}
        for cheat in get_args(Cheat):
            honest = Tenant(name="a", at_once=40, calls=3, prompt=(100, 400), answer=(20, 200))
            other = msgspec.structs.replace(honest, name="b", cheat=cheat)
            pool = Pool([honest, other], NO_WEIGHTS, instances=2, engine=SMALL)
            served[cheat] = pool.play(seconds, seed).service_s["b"]
        for cheat, service_s in served.items():
            gains.setdefault(cheat, []).append(100 * (service_s / served["none"] - 1))
    return [
        Figure(
            name=f"what a tenant gains that cheats: {cheat}",
            value=round(fmean(found), 2),
            unit="% of its service",
            target=5.0,
            detail={"seeds": spread(found, 2)},
        )
        for cheat, found in gains.items()
        if cheat != "none"
    ]


def measure(_: Console, quick: bool) -> list[Figure]:
    seeds, seconds = (range(1), 300.0) if quick else (range(5), 3600.0)
    return [
        *alone_and_beside(),
        *weighted(),
        *backlogged(seeds, seconds),
        *not_overloaded(seeds, seconds),
        *cheating(seeds, seconds / 3),
    ]


if __name__ == "__main__":
    columns = {"unfair": "unfair", "fair": "fair", "alone": "alone", "seeds": "seeds"}
    Bench("fairness", __doc__, columns | {"tenants": "tenants"}, "five minutes").on_one_core(
        measure
    )
