"""The best order of a few calls on one worker, by CP-SAT.

`kairos.workflows.compile.order` is compared with it. Helium's problem (its section 5): calls follow
each other on a circuit; a call takes its token usage, which depends on the one before it, and
begins when the delay of all that it needs has passed. All times are multiplied by the
KV capacity, so that they are whole.
"""

from collections.abc import Mapping, Sequence

import msgspec
from ortools.sat.python import cp_model

from experiments.token_steps import ends, usage
from kairos.workflows.compile.call_shapes import ScheduledCall, delay


class Optimum(msgspec.Struct, frozen=True):
    """An order, and its token steps. No order takes less than `bound`, by proof."""

    order: tuple[str, ...]
    steps: float
    bound: float


def optimum(
    calls: Mapping[str, ScheduledCall], kv_tokens: int, known: Sequence[str], *, limit_s: float
) -> Optimum:
    """`known`: an order to begin with. The search is deterministic up to its limit of time."""
    model = cp_model.CpModel()
    names = [*calls]
    known_ends = ends([known], calls, [kv_tokens])
    horizon = round(max(known_ends.values()) * kv_tokens)
    begins = [model.new_int_var(0, horizon, name) for name in names]
    finish = [model.new_int_var(0, horizon, name) for name in names]
    arcs, takes = [], []
    for j, name in enumerate(names):
        own = []
        for i in range(-1, len(names)):
            if i == j:
                continue
            lit = model.new_bool_var("")
            arcs.append((i + 1, j + 1, lit))
            before = calls[names[i]] if i >= 0 else None
            own.append((_scaled(usage(before, calls[name], kv_tokens), kv_tokens), lit))
            if i >= 0:
                model.add(begins[j] >= finish[i]).only_enforce_if(lit)
        takes += own
        model.add(finish[j] == begins[j] + sum(cost * lit for cost, lit in own))
        for needed in calls[name].after:
            wait = _scaled(delay(calls[needed]), kv_tokens)
            model.add(begins[j] >= finish[names.index(needed)] + wait)
        arcs.append((j + 1, 0, model.new_bool_var("")))
    model.add_circuit(arcs)
    last = model.new_int_var(0, horizon, "last")
    model.add_max_equality(last, finish)
    model.add(last >= sum(cost * lit for cost, lit in takes))
    model.minimize(last)
    for name, at in zip(names, finish, strict=True):
        model.add_hint(at, round(known_ends[name] * kv_tokens))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 4
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), solver.status_name(status)
    order = tuple(sorted(names, key=lambda name: solver.value(begins[names.index(name)])))
    return Optimum(
        order, solver.objective_value / kv_tokens, solver.best_objective_bound / kv_tokens
    )


def least_steps(calls: Mapping[str, ScheduledCall], kv_tokens: int, known: float) -> float:
    """Return the token steps of the best order, by trying all that may be better than one known.

    For up to nine calls: a second and quicker reference than CP-SAT.
    """
    takes = {
        (before, name): usage(calls[before] if before else None, call, kv_tokens)
        for name, call in calls.items()
        for before in (None, *calls)
    }
    best = known + 1e-9
    ended: dict[str, float] = {}

    def go_on(last: str | None, now: float) -> None:
        nonlocal best
        if now >= best:
            return
        if len(ended) == len(calls):
            best = now
            return
        for name, call in calls.items():
            if name not in ended and all(each in ended for each in call.after):
                may = [ended[each] + delay(calls[each]) for each in call.after]
                ended[name] = max(now, *may, 0.0) + takes[last, name]
                go_on(name, ended[name])
                del ended[name]

    go_on(None, 0.0)
    return min(best, known)


def _scaled(steps: float, kv_tokens: int) -> int:
    return round(steps * kv_tokens)
