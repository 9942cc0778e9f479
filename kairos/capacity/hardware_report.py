"""An answer about hardware as tables, for a person, and as figures, for a program."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kairos.capacity.hardware import CAPACITY_UNITS
from kairos.capacity.hardware_options import HardwareAnswer
from kairos.capacity.hardware_plan import (
    CHECKED_UTILISATION,
    HardwarePlan,
    HardwareQuestion,
    PlannedPool,
)
from kairos.capacity.lowering import (
    CPU_WORKERS,
    NodePlace,
    WorkGraph,
    lower_application,
    node_places,
)
from kairos.capacity.migration import Migration
from kairos.capacity.reasons import Reasons
from kairos.capacity.serving import Phases

_WIDTH = 160  # where there is no terminal
SHOWN_BEFORE, SHOWN = 4, 12  # of the front: cheaper than the chosen pool, and in all
LARGEST = 1000.0  # times the rate: further, it is not said what a pool can do
WHOLE = 0.995  # a share that is shown as all
_POOL_COLUMNS = (
    *("", "pool", "USD/h", "USD/workflow", "USD/M tokens", "kWh/workflow", "mean, s", "P95, s"),
)


def answer_figures(answer: HardwareAnswer) -> dict[str, Any]:
    asked, plan, times = answer.asked, answer.plan, answer.times
    figures: dict[str, Any] = {
        "objective": asked.objective,
        "workflows_per_s": round(plan.chosen.workflows_per_s, 6),
        "models": {name: asked.offer.model_of(name).name for name in plan.chosen.pool.routes},
        "precision": asked.offer.precision,
        "prices": asked.offer.terms.prices,
        "met": plan.met,
        "chosen": _pool_figures(plan.chosen),
        "in_target": _pool_figures(plan.in_target) if plan.in_target else None,
        "in_budget": _pool_figures(plan.in_budget) if plan.in_budget else None,
        "graph": _graph_figures(asked, plan),
        "front": [_pool_figures(each) for each in plan.front],
        "left_out": dict(plan.left_out),
        "what_if": {text: _pool_figures(other.chosen) for text, other in answer.others.items()},
        "why": None if answer.why is None else _why_figures(answer.why),
        "steps": None if answer.steps is None else _steps_figures(answer.steps),
    }
    if times is not None:
        figures["simulated"] = {
            "workflows": times.workflows,
            "mean_s": round(times.mean_s, 3),
            "p50_s": round(times.p50_s, 3),
            "p95_s": round(times.p95_s, 3),
        }
    return figures


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if value < math.inf else None


def _why_figures(why: Reasons) -> dict[str, Any]:
    return {
        "too_slow": [_pool_figures(each) for each in why.too_slow],
        "runners_up": {name: _pool_figures(each) for name, each in why.runners_up.items()},
        "target_s": [_finite(each) for each in why.target_s],
        "workflows_per_s": [_finite(each) for each in why.per_s],
        "prices": [
            {
                "device": each.device,
                "factor": round(each.factor, 3),
                "chosen": _pool_figures(each.pool),
            }
            for each in why.prices
        ],
    }


def _steps_figures(moved: Migration) -> dict[str, Any]:
    return {
        "today": {
            "usd_per_hour": round(moved.today_usd_per_hour, 4),
            "p95_s": _finite(moved.today_p95_s),
        },
        "steps": [
            {
                "what": "start" if each.start else "drain",
                "kind": each.kind,
                "count": each.count,
                "pool": dict(each.counts),
                "usd_per_hour": round(each.usd_per_hour, 4),
                "p95_s": _finite(each.p95_s),
                "usd": float(f"{each.usd:.4g}"),
            }
            for each in moved.steps
        ],
        "usd": float(f"{moved.usd:.4g}"),
        "saved_usd_per_hour": round(moved.saved_usd_per_hour, 4),
    }


def _graph_figures(asked: HardwareQuestion, plan: HardwarePlan) -> dict[str, Any]:
    graph, places = _graph(asked, plan)
    return {
        "nodes": [
            {
                "name": each.node.name,
                "kind": str(each.node.kind),
                "runs": round(each.node.runs, 4),
                "tokens": round(each.node.tokens, 1),
                "wait_s": round(each.node.wait_s, 4),
                "places": {name: round(share, 4) for name, share in each.shares.items()},
                "at_once": None if each.at_once is None else round(each.at_once, 3),
            }
            for each in places
        ],
        "edges": [
            {
                "source": each.source,
                "target": each.target,
                "share": round(each.share, 4),
                "bytes": round(each.data_bytes),
            }
            for each in graph.edges
        ],
    }


def _pool_figures(planned: PlannedPool) -> dict[str, Any]:
    found = planned.prediction
    return {
        "usd_per_hour": round(planned.usd_per_hour, 4),
        "usd_per_workflow": float(f"{planned.usd_per_workflow:.4g}"),
        "usd_per_million_tokens": float(f"{planned.usd_per_million_tokens:.4g}"),
        "kwh_per_workflow": float(f"{planned.kwh_per_workflow:.4g}"),
        "mean_s": round(found.mean_s, 3),
        "p50_s": round(found.p50_s, 3),
        "p95_s": round(found.p95_s, 3),
        "checked": planned.checked,
        "workflows_per_s": round(planned.workflows_per_s, 6),
        "resources": {name: float(f"{each:.4g}") for name, each in planned.resources.items()},
        "instances": [
            {
                "name": kind.name,
                "model": kind.model,
                "device": kind.device,
                "devices": kind.rates.devices,
                "phases": str(kind.phases),
                "count": planned.pool.counts[kind.name],
                "usd_per_hour": round(kind.usd_per_hour, 4),
                "utilisation": round(found.instances[kind.name].utilisation, 3),
                "batch": round(found.instances[kind.name].batch, 1),
                "kv_tokens": int(kind.rates.kv_tokens),
                "paid": kind.paid,
                "measured": kind.rates.measured,
                "rests_on": kind.rates.rests_on,
            }
            for kind in planned.kinds
        ],
        "routes": {
            name: {kind: round(share, 4) for kind, share in where.items()}
            for name, where in planned.pool.routes.items()
        },
    }


def print_answer(answer: HardwareAnswer) -> None:
    console = Console()
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(_tables(answer))
    planned, times = answer.plan.chosen.prediction, answer.times
    if times is not None:
        console.print(
            Text(
                f"Simulated with {times.workflows:,} workflows: mean {times.mean_s:.3g} s "
                f"(planned: {planned.mean_s / times.mean_s - 1:+.0%}), P95 {times.p95_s:.3g} s "
                f"({planned.p95_s / times.p95_s - 1:+.0%})"
            )
        )
    elif not answer.plan.chosen.checked:
        console.print(
            Text(
                f"Its instances are busier than {CHECKED_UTILISATION:.0%}, where planned times "
                "were not compared with simulation: add --simulate"
            )
        )


def _tables(answer: HardwareAnswer) -> Group:
    asked, plan = answer.asked, answer.plan
    parts: list[Table | Text] = [
        Text(
            f"{_models(asked, plan)} in {asked.offer.precision}, "
            f"{plan.chosen.workflows_per_s:.3g} workflows/s, prices as {asked.offer.terms.prices}"
        ),
        _instances(plan.chosen),
        _routes(plan.chosen),
        *_beside(asked, plan),
        _front(plan),
    ]
    if answer.why is not None:
        parts += map(Text, _why(asked, plan, answer.why))
    if answer.others:
        parts.append(_others(plan, answer.others))
    if answer.steps is not None:
        parts += _steps(answer.steps)
    if not plan.met:
        parts += map(Text, _not_met(asked, plan))
    parts += [Text(f"left out: {why}") for why in plan.left_out.values()]
    return Group(*parts)


def _why(asked: HardwareQuestion, plan: HardwarePlan, why: Reasons) -> Iterator[str]:
    """Say why the pool is chosen, and when another one would be."""
    chosen = plan.chosen
    for each in why.too_slow[:1]:
        yield (
            f"The next cheaper pool is too slow: {_pool(each)} for {each.usd_per_hour:,.2f} USD/h "
            f"takes {each.prediction.p95_s:,.3g} s"
        )
    if not why.too_slow:
        yield "No cheaper pool serves the load"
    for device, each in why.runners_up.items():
        yield (
            f"Without {device}: {_pool(each)} for {each.usd_per_hour:,.2f} USD/h "
            f"({each.usd_per_hour / chosen.usd_per_hour - 1:+.0%}), P95 "
            f"{each.prediction.p95_s:,.3g} s"
        )
    low, high = why.target_s
    yield f"It is the choice for targets from {low:,.3g} s" + (
        f" to {high:,.3g} s" if high < math.inf else " on"
    )
    least, most = why.per_s
    if most < LARGEST * asked.workflows_per_s:
        cheaper = f", and a cheaper pool up to {least:,.3g}/s" if least > 0 else ""
        yield f"It keeps the target up to {most:,.3g} workflows/s{cheaper}"
    for change in why.prices:
        yield (
            f"With {change.device} at {change.factor:.3g} times its price or "
            f"{'more' if change.factor > 1 else 'less'}, {_pool(change.pool)} is cheaper"
        )


def _steps(moved: Migration) -> Iterator[Table | Text]:
    table = _table("From today's pool", *("", "pool", "USD/h", "P95, s at most", "USD, once"))
    table.add_row(
        "today",
        Text(_counts(moved.today)),
        f"{moved.today_usd_per_hour:,.2f}",
        _seconds(moved.today_p95_s),
        "",
    )
    for each in moved.steps:
        table.add_row(
            Text(f"{'start' if each.start else 'drain'} {each.count} x {each.kind}"),
            Text(_counts(each.counts)),
            f"{each.usd_per_hour:,.2f}",
            _seconds(each.p95_s),
            f"{each.usd:,.3g}",
        )
    yield table
    saved = moved.saved_usd_per_hour
    if not moved.steps:
        yield Text("Today's pool is the plan's")
    elif saved > 0:
        yield Text(
            f"The steps cost {moved.usd:,.3g} USD once and save {saved:,.2f} USD/h: paid back in "
            f"{moved.usd / saved:,.2g} hours"
        )
    else:
        yield Text(f"The steps cost {moved.usd:,.3g} USD once, and {-saved:,.2f} USD/h more")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _seconds(value: float) -> str:
    return f"{value:,.3g}" if value < math.inf else "too busy"


def _models(asked: HardwareQuestion, plan: HardwarePlan) -> str:
    by_model: dict[str, list[str]] = {}
    for agent in plan.chosen.pool.routes:
        by_model.setdefault(asked.offer.model_of(agent).name, []).append(agent)
    if len(by_model) == 1:
        return next(iter(by_model))
    return "; ".join(f"{name} for {', '.join(agents)}" for name, agents in by_model.items())


def _not_met(asked: HardwareQuestion, plan: HardwarePlan) -> Iterator[str]:
    """Say how far each limit would have to be moved, one at a time."""
    yield "No pool is within target and budget: this is what comes nearest."
    late, dear = plan.in_budget, plan.in_target
    if dear is not None:
        yield (
            f"Within {asked.p95_s:g} s, whatever it costs: {_pool(dear)} for "
            f"{dear.usd_per_hour:,.2f} USD/h, P95 {dear.prediction.p95_s:,.3g} s"
        )
    elif asked.p95_s < math.inf:
        quickest = plan.front[-1]
        yield (
            f"Nothing is within {asked.p95_s:g} s; the quickest is {_pool(quickest)} with "
            f"{quickest.prediction.p95_s:,.3g} s: ask for a longer time, or allow more hardware"
        )
    if asked.usd_per_hour == math.inf:
        return
    if late is not None:
        yield (
            f"Within {asked.usd_per_hour:g} USD/h, however long it takes: {_pool(late)} for "
            f"{late.usd_per_hour:,.2f} USD/h, P95 {late.prediction.p95_s:,.3g} s"
        )
    else:
        least = plan.front[0]
        yield (
            f"Nothing is within {asked.usd_per_hour:g} USD/h; the cheapest that serves the load is "
            f"{_pool(least)} for {least.usd_per_hour:,.2f} USD/h"
        )


def _instances(planned: PlannedPool) -> Table:
    table = _table("What to have", "instance", "count", "devices", "busy", "rests on")
    for kind in planned.kinds:
        state = planned.prediction.instances[kind.name]
        count = planned.pool.counts[kind.name]
        table.add_row(
            Text(kind.name),
            f"{count:,}",
            f"{count * kind.rates.devices:,}",
            f"{state.utilisation:.0%}",
            Text("measured" if kind.rates.measured else "derived")
            + Text(f"; {kind.paid}: {kind.rates.rests_on}"),
        )
    return table


def _routes(planned: PlannedPool) -> Table:
    """Agents with the same places are one row."""
    table = _table("What runs where", "agents", "on")
    by_place: dict[str, list[str]] = {}
    for name in planned.pool.routes:
        by_place.setdefault(_place(planned, name), []).append(name)
    for where, names in by_place.items():
        table.add_row(Text(", ".join(names)), Text(where))
    return table


def _place(planned: PlannedPool, agent: str) -> str:
    """Return where an agent's calls go: `a :: b` is a pair; shares are of prompts or answers."""
    where = planned.pool.routes.get(agent, {})
    decoding = {kind.name for kind in planned.kinds if kind.phases is Phases.DECODE}
    sides = (
        [(name, share) for name, share in where.items() if name not in decoding],
        [(name, share) for name, share in where.items() if name in decoding],
    )
    return " :: ".join(
        ", ".join(name if share > WHOLE else f"{share:.0%} {name}" for name, share in side)
        for side in sides
        if side
    )


def _graph(asked: HardwareQuestion, plan: HardwarePlan) -> tuple[WorkGraph, Sequence[NodePlace]]:
    """The application, each agent's prompts and answers, and what happens before its calls."""
    chosen = plan.chosen
    graph = lower_application(
        asked.workflows, lambda agent: asked.offer.model_of(agent).kv_bytes_per_token()
    )
    return graph, node_places(graph, chosen.pool, chosen.kinds, asked.workflows_per_s)


def _beside(asked: HardwareQuestion, plan: HardwarePlan) -> Iterator[Text]:
    """Say which resources are needed, without accelerators."""
    _, places = _graph(asked, plan)
    at_once = sum(each.at_once or 0.0 for each in places if CPU_WORKERS in each.shares)
    if at_once:
        yield Text(f"Tools between calls: {at_once:,.1f} at a time in the mean, on CPU workers")
    found = plan.chosen.resources
    amounts = (f"{found[n]:,.3g} {unit or n}" for n, unit in CAPACITY_UNITS.items() if found.get(n))
    yield Text(f"Beside its devices: {', '.join(amounts)}")


def _front(plan: HardwarePlan) -> Table:
    """Pools around the chosen one."""
    title = f"Cost against time; * is chosen, ? is busier than {CHECKED_UTILISATION:.0%}"
    table = _table(title, *_POOL_COLUMNS)
    at = next((n for n, each in enumerate(plan.front) if each is plan.chosen), 0)
    first = max(0, min(at - SHOWN_BEFORE, len(plan.front) - SHOWN))
    for each in plan.front[first : first + SHOWN]:
        mark = "*" * (each is plan.chosen) + "?" * (not each.checked)
        table.add_row(mark, *_cells(each))
    return table


def _pool(each: PlannedPool) -> str:
    return _counts(each.pool.counts)


def _cells(each: PlannedPool) -> Sequence[Text | str]:
    return (
        Text(_pool(each)),
        f"{each.usd_per_hour:,.2f}",
        f"{each.usd_per_workflow:.3g}",
        f"{each.usd_per_million_tokens:.3g}",
        f"{each.kwh_per_workflow:.3g}",
        f"{each.prediction.mean_s:,.3g}",
        f"{each.prediction.p95_s:,.3g}",
    )


def _others(plan: HardwarePlan, others: Mapping[str, HardwarePlan]) -> Table:
    table = _table("If it were otherwise", *_POOL_COLUMNS)
    table.add_row("as it is", *_cells(plan.chosen))
    for name, other in others.items():
        table.add_row(Text(name), *_cells(other.chosen))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        left = name in ("", "instance", "agents", "on", "pool", "rests on")
        table.add_column(Text(name), justify="left" if left else "right", overflow="fold")
    return table
