"""What the planner says of a pool, beside what the model of vLLM does there.

`kairos plan-hardware` computes a pool's times from a steady state, and its throughput from how busy
calls keep an instance. Here both are simulated, with Kairos's own policy and placement: pools of
one to four instances, of six kinds of hardware and four models, at 40 and 70 % of what the planner
says they can do, with workflows of generative and recorded applications; and eight pools of
instances for prefill and for decode, alike and not, with links of 400 Gbit/s a device. Expected:
P95 within 20 %, throughput within 15 %.

Throughput is that of answers' tokens, first come, first served, while half as many workflows again
arrive as the planner says that can be served, in the second half of that time.

One pair is measured nearer to its limit, too, at 80 and 90 %. Expected: beyond the bounds at 90 %,
so that the planner marks such pools (`hardware_plan.CHECKED_UTILISATION`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, table
from experiments.recordings import DEMO
from experiments.report import commit, picture
from experiments.workload import recorded
from kairos.capacity.engine_rates import derived
from kairos.capacity.hardware_options import load_catalogue, observed_calls
from kairos.capacity.hardware_plan import call_kinds
from kairos.capacity.lowering import ObservedCall
from kairos.capacity.pool import CallKind, InstanceKind, PoolProblem
from kairos.capacity.pool_simulation import POLICY, SimulatedPool, pool_world
from kairos.capacity.prediction import Prediction, Predictor
from kairos.capacity.serving import InstanceUse, Phases, use
from kairos.core import SECOND
from kairos.simulate import Workflow, World, draw_arrivals, load_workflows
from kairos.simulate.workload.application import generate, load_application

AIM_P95, AIM_THROUGHPUT = 0.20, 0.15
SHARES = (0.4, 0.7)  # of what the planner says that the pool can do
NEAR_THE_LIMIT = (0.8, 0.9)  # of one pair, beside these; the bounds are not for them
SEED, GENERATED = 1, 400
STAYS, FEWEST, MOST = 40, 600, 3_000  # workflows of a run
OVERLOAD, LASTS, MOST_WAITING = 1.5, 6, 24_000  # for the throughput
HEADER = (
    *("pool", "workload", "load", "P95, s: planner", "simulated", "off"),
    *("tokens/s: planner", "simulated", "off"),
)
# Device, model, instances, workload.
POOLS = (
    ("a40", "llama-3-8b", 2, "demo"),
    ("a40", "llama-3-8b", 4, "qa"),
    ("a40", "llama-2-13b", 4, "rg"),
    ("a40", "llama-2-13b", 2, "tau_bench_airline"),
    ("a100", "llama-3-8b", 1, "demo"),
    ("a100", "llama-2-13b", 2, "cg"),
    ("a100", "qwen2.5-32b", 2, "qa"),
    ("h100", "llama-3-8b", 1, "demo"),
    ("h100", "llama-2-13b", 1, "rg"),
    ("h100", "qwen3-30b-a3b", 2, "qa"),
    ("h200", "llama-3-8b", 1, "qa"),
    ("h200", "qwen2.5-32b", 2, "demo"),
    ("h200", "llama-2-13b", 1, "tau_bench_airline"),
    ("b200", "llama-3-8b", 1, "rg"),
    ("b200", "qwen2.5-72b", 3, "demo"),
    ("mi300x", "llama-3-70b", 2, "qa"),
    ("mi300x", "mixtral-8x7b", 1, "cg"),
    ("gaudi3", "llama-3-8b", 1, "demo"),
    ("gaudi3", "mistral-7b", 2, "rg"),
    ("gaudi3", "qwen2.5-32b", 3, "cg"),
)
# The same of pairs: device and instances for prefill before those for decode.
PAIRS = (
    ("h100", 1, "gaudi3", 1, "llama-3-8b", "qa"),
    ("h100", 1, "gaudi3", 2, "llama-3-8b", "rg"),
    ("a100", 1, "a100", 1, "llama-3-8b", "demo"),
    ("h100", 1, "a100", 1, "llama-2-13b", "qa"),
    ("a40", 2, "a40", 2, "llama-3-8b", "qa"),
    ("b200", 1, "h200", 1, "qwen2.5-32b", "rg"),
    ("gaudi3", 1, "mi300x", 1, "mistral-7b", "cg"),
    ("h100", 2, "h200", 2, "llama-2-13b", "tau_bench_airline"),
)
BUSY_PAIR = PAIRS[3]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pool at one load."""

    commit: str
    device: str  # of pairs: for decode
    model: str
    instances: int
    prefill: str | None = None  # the device for prefill; None: each instance serves both phases
    prefill_instances: int = 0
    workload: str
    share: float
    per_s: float
    workflows: int
    predicted_mean_s: float
    simulated_mean_s: float
    predicted_p95_s: float
    simulated_p95_s: float
    predicted_tokens_per_s: float  # at most; the same at both loads
    simulated_tokens_per_s: float


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for device, model, count, name in POOLS[:4] if quick else POOLS:
        yield from _rows(at_commit, model, name, (device, count))
    for first, prefills, device, count, model, name in PAIRS[:2] if quick else PAIRS:
        yield from _rows(at_commit, model, name, (device, count), (first, prefills))
    if not quick:
        first, prefills, device, count, model, name = BUSY_PAIR
        had = (device, count), (first, prefills)
        yield from _rows(at_commit, model, name, *had, shares=NEAR_THE_LIMIT)


Had = tuple[str, int]  # a device, and how many instances


def _rows(
    at_commit: str,
    model: str,
    workload: str,
    had: Had,
    prefill: Had | None = None,
    shares: Sequence[float] = SHARES,
) -> Iterator[Row]:
    pool = _Planned(model, workload, had, prefill)
    tokens_per_s = pool.saturated()
    for share in shares:
        per_s = share * pool.most_per_s
        expected = pool.predicted(per_s)
        assert expected is not None, (had, prefill, model, share)
        times = pool.simulated(per_s, expected)
        yield Row(
            commit=at_commit,
            device=had[0],
            model=model,
            instances=had[1],
            prefill=None if prefill is None else prefill[0],
            prefill_instances=0 if prefill is None else prefill[1],
            workload=workload,
            share=share,
            per_s=_rounded(per_s),
            workflows=pool.count(per_s, expected),
            predicted_mean_s=_rounded(expected.mean_s),
            simulated_mean_s=_rounded(times["mean"]),
            predicted_p95_s=_rounded(expected.p95_s),
            simulated_p95_s=_rounded(times["p95"]),
            predicted_tokens_per_s=_rounded(pool.most_per_s * pool.answer_tokens),
            simulated_tokens_per_s=_rounded(tokens_per_s),
        )


def _rounded(value: float | None) -> float:
    assert value is not None
    return float(f"{value:.5g}")


@cache
def workflows(name: str) -> Sequence[Workflow]:
    """Of a workload: the demo's, a generative model's, or an application of the recordings."""
    if name == "demo":
        return load_workflows(DEMO)
    if name in ("qa", "rg", "cg"):
        return generate(load_application(name), GENERATED, seed=SEED)
    return recorded(name, 4096)


class _Planned:
    """One pool, as the planner sees it and as the model of engines runs it."""

    def __init__(self, model: str, workload: str, had: Had, prefill: Had | None = None) -> None:
        known = load_catalogue()
        shape = known.model_named(model)
        sides = {Phases.BOTH: had}
        if prefill is not None:
            sides = {Phases.PREFILL: prefill, Phases.DECODE: had}
        self._kinds = tuple(
            InstanceKind(
                name=f"{device}-{phases}",
                device=device,
                phases=phases,
                rates=derived(known.accelerator_named(device), shape),
                usd_per_hour=1.0,
                kv_bytes_per_token=shape.kv_bytes_per_token(),
            )
            for phases, (device, _) in sides.items()
        )
        counts = [count for _, count in sides.values()]
        self._counts = {kind.name: n for kind, n in zip(self._kinds, counts, strict=True)}
        self._pool = SimulatedPool(counts=self._counts, kinds=self._kinds)
        self._workflows = workflows(workload)
        self._observed: Sequence[Sequence[ObservedCall]] = observed_calls(self._workflows)
        self._calls = call_kinds(self._observed, 1.0)
        self.most_per_s = min(
            self._counts[kind.name]
            / sum(each.per_s * self._use(kind, each).busy_s for each in self._calls)
            for kind in self._kinds
        )
        self.answer_tokens = sum(each.per_s * each.shape.answer for each in self._calls)

    def _use(self, kind: InstanceKind, call: CallKind) -> InstanceUse:
        used = use(kind.rates, call.shape, kind.phases)
        assert used is not None, f"{kind.name} cannot serve {call.name}"
        return used

    def predicted(self, per_s: float) -> Prediction | None:
        calls = tuple(replace(each, per_s=each.per_s * per_s) for each in self._calls)
        problem = PoolProblem(
            calls=calls,
            instances=self._kinds,
            kv_bytes_per_token=self._kinds[0].kv_bytes_per_token,
        )
        routes = {each.name: dict.fromkeys(self._counts, 1.0) for each in calls}
        return Predictor(problem, self._observed).predicted(self._counts, routes)

    def count(self, per_s: float, expected: Prediction) -> int:
        return min(max(round(STAYS * per_s * expected.mean_s), FEWEST), MOST)

    def simulated(self, per_s: float, expected: Prediction) -> Mapping[str, float | None]:
        at_us = draw_arrivals("poisson", self.count(per_s, expected), per_s, SEED)
        times: Mapping[str, float | None] = self._world(at_us, POLICY).metrics.record()["e2e_s"]
        return times

    def saturated(self) -> float:
        """Tokens of answers a second, where more comes than can be served.

        Batches must fill first: arrivals last many times as long as a workflow in full ones.
        """
        per_s = OVERLOAD * self.most_per_s
        stays_s = sum(
            each.per_s * self._use(kind, each).latency_s
            for kind in self._kinds
            for each in self._calls
        )
        count = min(max(round(LASTS * stays_s * per_s), FEWEST), MOST_WAITING)
        at_us = draw_arrivals("poisson", count, per_s, SEED)
        begins, ends = at_us[count // 2], at_us[-1]
        rows = self._world(at_us, "fcfs").metrics.rows
        tokens = sum(
            row.completion_tokens or 0
            for row in rows
            if row.ended_at is not None and begins <= row.ended_at < ends
        )
        return tokens * SECOND / (ends - begins)

    def _world(self, at_us: Sequence[int], policy: str) -> World:
        world = pool_world(self._pool, self._workflows, at_us, SEED, policy)
        world.run()
        return world


def _off(expected: float, found: float) -> float:
    return expected / found - 1


def section(rows: Sequence[Row]) -> str:
    return f"{_summary(rows)}\n\n" + table(
        HEADER,
        (
            [
                f"{_shown(row)}, {row.model}",
                row.workload,
                f"{row.share:.0%}",
                f"{row.predicted_p95_s:.3g}",
                f"{row.simulated_p95_s:.3g}",
                f"{_off(row.predicted_p95_s, row.simulated_p95_s):+.0%}",
                f"{row.predicted_tokens_per_s:,.0f}",
                f"{row.simulated_tokens_per_s:,.0f}",
                f"{_off(row.predicted_tokens_per_s, row.simulated_tokens_per_s):+.0%}",
            ]
            for row in rows
        ),
    )


def _shown(row: Row) -> str:
    first = f"{row.prefill_instances} x {row.prefill} :: " if row.prefill is not None else ""
    return f"{first}{row.instances} x {row.device}"


def _judged(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.share in SHARES]


def _summary(every: Sequence[Row]) -> str:
    rows = _judged(every)
    p95 = [abs(_off(row.predicted_p95_s, row.simulated_p95_s)) for row in rows]
    tokens = [abs(_off(r.predicted_tokens_per_s, r.simulated_tokens_per_s)) for r in rows[::2]]
    return (
        f"P95 is within {AIM_P95:.0%} in {sum(each <= AIM_P95 for each in p95)} of {len(p95)} "
        f"runs (worst {max(p95):.0%}); throughput is within {AIM_THROUGHPUT:.0%} in "
        f"{sum(each <= AIM_THROUGHPUT for each in tokens)} of {len(tokens)} pools "
        f"(worst {max(tokens):.0%}). Loads above {max(SHARES):.0%} are not counted."
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    p95 = sorted(abs(_off(row.predicted_p95_s, row.simulated_p95_s)) for row in _judged(rows))
    return [
        Figure(
            name="planned P95 of workflows, beside the simulated one",
            value=round(100 * p95[int(0.9 * len(p95))], 1),
            unit="percent off in 90 of 100 runs",
            target=100 * AIM_P95,
        )
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    with picture(path, figsize=(5.5, 5)) as (figure, plot):
        for share, mark in zip(SHARES, "ox", strict=True):
            at = [row for row in rows if row.share == share]
            plot.scatter(
                [row.simulated_p95_s for row in at],
                [row.predicted_p95_s for row in at],
                marker=mark,
                label=f"{share:.0%} load",
            )
        ends = [min(row.simulated_p95_s for row in rows), max(row.simulated_p95_s for row in rows)]
        for factor in (1 - AIM_P95, 1.0, 1 + AIM_P95):
            plot.plot(ends, [factor * each for each in ends], color="grey", linewidth=0.7)
        plot.set_xscale("log")
        plot.set_yscale("log")
        plot.set_xlabel("P95 simulated, s")
        plot.set_ylabel("P95 by the planner, s")
        plot.legend()
        figure.tight_layout()


STUDY = Study(
    title="What the planner says of a pool, beside the simulation",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
    figures=figures,
)
