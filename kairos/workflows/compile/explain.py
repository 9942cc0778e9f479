"""Explanation of a plan: removed, merged and fetched operators, their order, and what it costs.

It has the tree of the flow's prompts, with the savings of each cached prefix, and a placement on
devices, compared with simpler rules.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.core import BYTES_PER_TOKEN
from kairos.workflows.compile.batches import batch_of
from kairos.workflows.compile.call_shapes import answers_bytes, fixed
from kairos.workflows.compile.device_work import DevicePlan, LoadTime, OperatorWork
from kairos.workflows.compile.forecast import FlowForecast, forecast_lines
from kairos.workflows.compile.operators import Asking, Loop, MapOver, Operator
from kairos.workflows.compile.passes.decoding import PartialDecode
from kairos.workflows.compile.passes.static_prefixes import StaticPrefix
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import co_located, data_parallel, round_robin
from kairos.workflows.compile.prediction import FlowPrediction, OperatorCalls
from kairos.workflows.compile.prompts import Computed, Hole, Piece, Speaker, Text, prompts
from kairos.workflows.compile.references import needs
from kairos.workflows.compile.tree import PrefixNode, PromptTree, size_bytes

_S = 1_000_000


_SHOWN = 48  # characters of a text


class ExplainedPrefix(msgspec.Struct, frozen=True):
    """Stretch of prompts, at four bytes a token, with answers at their maximum length."""

    depth: int
    says: str
    tokens: int  # as far as known before the row is
    unknown: tuple[str, ...]  # values of unknown size
    prompts: int  # that have it
    operators: tuple[str, ...]  # whose prompts end with it
    saves_tokens: int  # per row, of many, if it is cached each time but the first


class ExplainedPlacement(msgspec.Struct, frozen=True):
    """Placement with alternatives. `beside_us`: times of other rules."""

    plan: DevicePlan
    beside_us: dict[str, float]


class ExplainedOperator(msgspec.Struct, frozen=True):
    name: str
    kind: str
    needs: tuple[str, ...]
    depth: int  # number of bodies around it
    at_most: int  # computations for a row (or a group)
    fetched: bool  # looked up in results of earlier runs
    is_call: bool  # of an engine, a function or a processor
    shared: bool  # equal calls of other rows are made once
    predicted: OperatorCalls | None
    batch: int | None = None  # batch size; None: it takes one item


class ExplainedPlan(msgspec.Struct, frozen=True):
    flow: str
    passes: tuple[str, ...]  # the ones that are on
    columns: tuple[str, ...]
    outputs: tuple[str, ...]
    collapsed: dict[str, str]  # operators that give this unchanged
    pruned: tuple[str, ...]
    freed: dict[str, tuple[str, ...]]
    merged: dict[str, str]
    partial: tuple[PartialDecode, ...]
    prefills: dict[str, tuple[str, ...]]  # LLM operators prefilled while others run
    operators: tuple[ExplainedOperator, ...]
    calls_per_row: int  # at most
    prompts: tuple[ExplainedPrefix, ...]  # what they have in common
    static_prefixes: tuple[StaticPrefix, ...]
    prediction: FlowPrediction | None
    placement: ExplainedPlacement | None = None
    forecast: FlowForecast | None = None


def explain_plan(
    plan: Plan,
    prediction: FlowPrediction | None = None,
    placement: ExplainedPlacement | None = None,
    forecast: FlowForecast | None = None,
) -> ExplainedPlan:
    """Return the explanation of a plan.

    `prediction`: by `predict`, for rows of the table. `placement`: of these on devices that switch
    models. `forecast`: for the table on a pool.
    """
    operators = tuple(_operators(plan, plan.declaration.operators, prediction))
    passes = tuple(name for name, on in msgspec.structs.asdict(plan.passes).items() if on)
    calls = (each for each in operators if each.is_call)
    return ExplainedPlan(
        flow=plan.declaration.name,
        passes=passes,
        columns=plan.columns,
        outputs=plan.outputs,
        collapsed={name: given.label for name, given in plan.collapsed.items()},
        pruned=plan.pruned,
        freed=dict(plan.freed),
        merged=dict(plan.merged),
        partial=plan.partial,
        prefills={each.operator: tuple(sorted(each.beside)) for each in plan.prefills},
        operators=operators,
        calls_per_row=sum(each.at_most for each in calls),
        prompts=explained_prompts(plan.declaration.operators),
        static_prefixes=plan.static_prefixes,
        prediction=prediction,
        placement=placement,
        forecast=forecast,
    )


def plan_lines(explained: ExplainedPlan) -> Iterator[str]:
    """Yield the lines of an explanation, for a terminal."""
    yield f"flow {explained.flow}; passes: {', '.join(explained.passes) or 'none'}"
    columns = ", ".join(explained.columns) or "none by name"
    yield f"columns needed: {columns}; columns written: {', '.join(explained.outputs)}"
    yield from _of_passes(explained)
    for each in explained.operators:
        yield "  " * (each.depth + 1) + _line(each)
    yield from prompt_lines(explained.prompts)
    if explained.static_prefixes:
        count = len(explained.static_prefixes)
        yield f"computed while rows are awaited: {count} static beginnings of prompts"
    yield f"calls for a row: {explained.calls_per_row} at most"
    found = explained.prediction
    if found is not None:
        merged = sum(each.merged for each in found.by_operator.values())
        yield (
            f"for {found.rows} rows: {found.calls} calls and {found.tokens} tokens at most, "
            f"{merged} calls merged"
        )
    if explained.placement is not None:
        yield from placement_lines(explained.placement)
    if explained.forecast is not None:
        yield from forecast_lines(explained.forecast)


def _of_passes(explained: ExplainedPlan) -> Iterator[str]:
    """Yield a line for each change made by a pass."""
    for name, given in explained.collapsed.items():
        yield f"left out: {name} gives {given} unchanged"
    if explained.pruned:
        yield f"left out, since no output needs it: {', '.join(explained.pruned)}"
    for name, loose in explained.freed.items():
        yield f"need not wait: {name} begins beside {', '.join(loose)}"
    for gone, stands in explained.merged.items():
        yield f"merged: {gone} is computed as {stands}"
    for name, beside in explained.prefills.items():
        yield f"begins ahead: the prompt of {name}, beside {', '.join(beside)}"
    for streamed in explained.partial:
        maps = ", ".join(streamed.maps)
        by = "" if streamed.parser is None else f" (found by {streamed.parser})"
        yield f"streamed: {streamed.operator}, whose items{by} go to {maps} as they are finished"


def _line(each: ExplainedOperator) -> str:
    parts = [f"{each.name}: {each.kind}"]
    if each.needs:
        parts.append(f"after {', '.join(each.needs)}")
    if each.is_call:
        if each.at_most != 1:
            parts.append(f"{each.at_most} times a row at most")
        parts.append("equal calls made once" if each.shared else "made for each row")
        if each.fetched:
            parts.append("fetched if computed before")
        if each.batch is not None:
            parts.append(f"{each.batch} at a time")
    if each.predicted is not None:
        parts.append(f"{each.predicted.calls} calls, {each.predicted.merged} merged")
    return "; ".join(parts)


def _operators(
    plan: Plan,
    operators: Sequence[Operator],
    prediction: FlowPrediction | None,
    depth: int = 0,
    times: int = 1,
) -> Iterator[ExplainedOperator]:
    by_operator = prediction.by_operator if prediction else {}
    for each in operators:
        call = isinstance(each.params, Asking)
        yield ExplainedOperator(
            name=each.name,
            kind=each.kind,
            needs=needs(each),
            depth=depth,
            at_most=times,
            fetched=each.name in plan.fetches,
            is_call=call,
            shared=call and each.purity == "pure" and plan.passes.cse,
            predicted=by_operator.get(each.name),
            batch=batch_of(each.params),
        )
        params = each.params
        inner = times
        if isinstance(params, Loop):
            inner = times * params.max_rounds
        elif isinstance(params, MapOver):
            inner = times * params.max_items
        yield from _operators(plan, each.body, prediction, depth + 1, inner)


def explain_placement(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> ExplainedPlacement:
    """Place the work, and compare with other rules. Raises SetupError: as `place`."""
    rules = {"round robin": round_robin, "co-located": co_located, "data-parallel": data_parallel}
    found = place_operators(works, loads, devices)
    beside = {name: rule(works, loads, devices).makespan_us for name, rule in rules.items()}
    return ExplainedPlacement(found, beside)


def placement_lines(explained: ExplainedPlacement) -> Iterator[str]:
    """Yield the lines of a placement, for a terminal."""
    plan = explained.plan
    yield f"on {plan.devices} devices: {plan.makespan_us / _S:,.1f} s, {plan.loads} loads"
    for device in range(plan.devices):
        yield f"  device {device + 1}:"
        for phase in (each for each in plan.phases if each.device == device):
            load = f"load {phase.model} {phase.load_us / _S:,.1f} s, then " if phase.load_us else ""
            part = f" (part {phase.part + 1} of {phase.of})" if phase.of > 1 else ""
            yield (
                f"    {phase.begins_at / _S:,.1f} to {phase.ends_at / _S:,.1f} s: "
                f"{load}{phase.operator}{part} on {phase.model}"
            )
    beside = ", ".join(f"{name} {us / _S:,.1f} s" for name, us in explained.beside_us.items())
    yield f"  beside it: {beside}"


def explained_prompts(operators: Sequence[Operator]) -> tuple[ExplainedPrefix, ...]:
    """Return the stretches of all LLM operators' prompts, from the root down.

    Operators must be in the order of `in_order`.
    """
    tree = PromptTree(prompts(operators))
    answers = answers_bytes(operators)
    same_for_all: dict[int, bool] = {id(tree.root): True}  # for all rows, up to there
    found = []
    for node, depth in tree.nodes():
        assert node.before is not None
        before = same_for_all[id(node.before)]
        same_for_all[id(node)] = before and fixed(node.pieces) == len(node.pieces)
        found.append(_explained_prefix(node, depth, answers, before))
    return tuple(found)


def prompt_lines(explained: Sequence[ExplainedPrefix]) -> Iterator[str]:
    if not explained:
        return
    saved = sum(each.saves_tokens for each in explained)
    yield (
        "prompts as a tree, from their beginnings; what is shared saves "
        f"{saved} known tokens a row, while engines have it:"
    )
    for each in explained:
        yield "  " * (each.depth + 1) + _prefix_line(each)


def _prefix_line(each: ExplainedPrefix) -> str:
    about = " and ".join([f"{each.tokens} tokens", *each.unknown])
    parts = [f"{each.says}: {about}"]
    if each.prompts > 1:
        parts.append(f"in {each.prompts} prompts")
    if each.saves_tokens:
        parts.append(f"saves {each.saves_tokens}")
    if each.operators:
        parts.append(f"-> {', '.join(each.operators)}")
    return "; ".join(parts)


def _explained_prefix(
    node: PrefixNode, depth: int, answers: Mapping[str, int], same_for_all: bool
) -> ExplainedPrefix:
    first = fixed(node.pieces) if same_for_all else 0
    sizes = [size_bytes(each, answers) for each in node.pieces]
    below = sum(1 for _ in node.below())
    saves = sum(sizes[:first]) * below + sum(sizes[first:]) * (below - 1)
    holes = [each.label for each in node.pieces if isinstance(each, Hole | Computed)]
    return ExplainedPrefix(
        depth=depth,
        says=" ".join(filter(None, map(_shown, node.pieces))),
        tokens=sum(sizes) // BYTES_PER_TOKEN,
        unknown=tuple(f"{{{each}}}" for each in holes if each not in answers),
        prompts=below,
        operators=tuple(node.operators),
        saves_tokens=saves // BYTES_PER_TOKEN,
    )


def _shown(piece: Piece) -> str:
    match piece:
        case Text(text=text):
            return repr(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
        case Hole(label=label):
            return f"{{{label}}}"
        case Computed(label=label):
            return f"{{%{label}%}}"
        case Speaker(role=role):
            return f"<{role}>"
