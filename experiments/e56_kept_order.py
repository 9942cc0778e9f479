"""Measure how much of prompts is found in prefix caches with the plan's order, and without.

Fifty drawn flows of 3 to 10 operators, some in conversations, that share roles and columns, over 48
rows; and a debate of three agents, two rounds and a judge. One simulated engine, whose memory holds
from a little more than a call to the contexts of many rows, with 1, 4 and 16 calls side by side.
The same with the operators nested over all rows at once.
Expected: never less found than without, and no more time. Left out: what tokenizers and chat
templates make of texts. Five minutes of one core.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, gap_figures, table
from experiments.flow_workloads import words
from experiments.report import commit
from kairos import flow
from kairos.core import PLACEMENTS, POLICIES
from kairos.engines import load_profile
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import PoolOptions, SimulatedFlow, simulate_flow
from kairos.workflows import Functions, Operand, Plan
from kairos.workflows.compile.call_shapes import call_shapes
from kairos.workflows.compile.operators import Role
from kairos.workflows.compile.order import cache_aware_order
from kairos.workflows.compile.passes.order import CallOrder, nestings, of_sequences

BLOCK = 16
ROWS, FLOWS, FEW = 48, 50, 3
MEMORIES = (1.5, 4.0, 12.0)  # of the longest call
AT_ONCE = (1, 4, 16)
DEBATE = "debate"

Table = Sequence[Mapping[str, object]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A flow on an engine. Shares of prompts' tokens that were found, and seconds, by way."""

    commit: str
    flow: str
    blocks: int
    at_once: int
    found: dict[str, float]
    took_s: dict[str, float]


WITH, WITHOUT, NESTED = WAYS = "with the pass", "without", "nested over all rows"


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    cases = [(DEBATE, debate(), 250, 4), (DEBATE, debate(), 100, 1)]
    for seed in range(FEW if quick else FLOWS):
        drawn = drawn_flow(seed)
        longest = longest_call(drawn[0].compile())
        for times in MEMORIES:
            for at_once in AT_ONCE:
                blocks = -(-round(longest * times) // BLOCK)
                cases.append((str(seed), drawn, blocks, at_once))
    for name, (f, rows), blocks, at_once in cases:
        runs = {
            WITH: ran(f.compile(), rows, blocks, at_once),
            WITHOUT: ran(f.compile(flow.Passes(order=False)), rows, blocks, at_once),
            NESTED: ran(f.compile(), rows, blocks, at_once, nested(f.compile(), len(rows))),
        }
        yield Row(
            commit=at_commit,
            flow=name,
            blocks=blocks,
            at_once=at_once,
            found={way: round(found_share(run), 4) for way, run in runs.items()},
            took_s={way: round(run.simulated_s, 3) for way, run in runs.items()},
        )


def ran(
    plan: Plan, rows: Table, blocks: int, at_once: int, order: CallOrder | None = None
) -> SimulatedFlow:
    """`order`: that the run is to keep; None: that it finds itself."""
    engine = replace(load_profile("h200-llama3-8b"), kv_tokens=blocks * BLOCK, max_num_seqs=at_once)
    pool = PoolOptions(
        instances=1,
        profile=engine,
        policy=POLICIES["kairos"],
        placement=PLACEMENTS["kairos"],
        client=FlowClient if order is None else partial(Ordered, order),
    )
    return simulate_flow(plan, iter(rows), Functions(), pool)


def found_share(run: SimulatedFlow) -> float:
    return run.prompt_tokens_cached / (run.prompt_tokens_cached + run.prompt_tokens_computed)


class Ordered(FlowClient):
    """Keeps an order that is given."""

    def __init__(self, order: CallOrder, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.executor.set_order(order)


def nested(plan: Plan, rows: int) -> CallOrder:
    shapes = call_shapes(plan.declaration.operators)
    ways = nestings(cache_aware_order(shapes.calls, 1_000), shapes.static)
    sequences = ways.get("in stretches") or ways.get("nested") or ways["row-major"]
    order = of_sequences("nested", sequences)
    return replace(order, together=rows)


def longest_call(plan: Plan) -> int:
    """Tokens, about."""
    calls = call_shapes(plan.declaration.operators).calls.values()
    return max(sum(each.tokens for each in call.prompt) + call.completion_tokens for call in calls)


def debate(agents: int = 3, rounds: int = 2) -> tuple[flow.Flow, Table]:
    """Roles of 19 blocks, questions of 15."""
    f = flow.Flow("debate", max_tokens=32, on_cut="keep")
    row = f.input("row")
    talks: list[list[tuple[Role, str]]] = [
        [("system", words(f"debater {n}", 19 * BLOCK)), ("user", "{{ row.question }}")]
        for n in range(agents)
    ]
    inputs: list[dict[str, Operand]] = [{"row": row} for _ in range(agents)]
    said: list[Operand] = []
    for turn in range(rounds):
        said = [f.llm(f"a{n}_{turn}", [*talks[n]], inputs={**inputs[n]}) for n in range(agents)]
        for n in range(agents):
            heard = "\n".join(f"{{{{ a{m}_{turn} }}}}" for m in range(agents) if m != n)
            talks[n] += [("assistant", f"{{{{ a{n}_{turn} }}}}"), ("user", f"Others:\n{heard}")]
            inputs[n] |= {f"a{m}_{turn}": said[m] for m in range(agents)}
    f.output("answer", f.llm(
        "judge", "{{ row.question }}\n{{ said | join('\n') }}",
        system=words("judge", 19 * BLOCK), row=row, said=said,
    ))  # fmt: skip
    return f, [{"question": words(f"question {n}", 15 * BLOCK)} for n in range(ROWS)]


def drawn_flow(seed: int, rows: int = ROWS) -> tuple[flow.Flow, Table]:
    """Draw a flow and its table.

    Operators speak in one of a few roles of a column each, alone, with what others said, or go on
    with what they said before.
    """
    draw = Random(seed)  # noqa: S311
    f = flow.Flow(f"drawn{seed}", max_tokens=draw.choice((8, 32, 128)), on_cut="keep")
    row = f.input("row")
    roles = [words(f"role {n}", draw.choice((0, 40, 150, 400))) for n in range(draw.randint(1, 4))]
    columns = {f"c{n}": draw.choice((10, 60, 240, 600)) for n in range(draw.randint(1, 3))}
    talks: list[tuple[list[tuple[Role, str]], dict[str, Operand], str]] = []
    said: dict[str, Operand] = {}
    for n in range(draw.randint(3, 10)):
        if talks and draw.random() < 0.35:  # a conversation goes on
            before, inputs, last = draw.choice(talks)
            talk = [*before, ("assistant", f"{{{{ {last} }}}}"), ("user", _more(draw))]
            inputs = inputs | {last: said[last]}
        else:
            asked = f"{{{{ row.{draw.choice([*columns])} }}}}"
            inputs = {"row": row}
            for other in draw.sample([*said], min(len(said), draw.choice((0, 0, 1, 2)))):
                asked += f"\n{{{{ {other} }}}}"
                inputs[other] = said[other]
            role = draw.choice(roles)
            talk = [("system", role), ("user", asked)] if role else [("user", asked)]
        said[f"o{n}"] = f.llm(f"o{n}", talk, inputs={**inputs})
        talks.append((talk, inputs, f"o{n}"))
    for name, each in said.items():
        f.output(name, each)
    shared = draw.choice((1, 1, 4))  # rows that have the first column's text in common
    return f, [_row(draw, number, columns, shared) for number in range(rows)]


def _row(draw: Random, number: int, columns: Mapping[str, int], shared: int) -> dict[str, str]:
    found = {}
    for at, (name, size) in enumerate(columns.items()):
        tokens = round(size * draw.uniform(0.7, 1.3)) if shared == 1 else size
        found[name] = words(f"{name} {number if at else number // shared}", tokens)
    return found


def _more(draw: Random) -> str:
    return words(f"go on {draw.randint(0, 3)}", draw.choice((5, 40, 150)))


def section(rows: Sequence[Row]) -> str:
    lines = [
        [f"{row.flow}, {row.blocks} blocks, {row.at_once} at once"]
        + [f"{100 * row.found[way]:.0f}" for way in WAYS]
        for row in rows
        if row.flow == DEBATE
    ]
    drawn = [row for row in rows if row.flow != DEBATE]
    for at_once in AT_ONCE:
        some = [row for row in drawn if row.at_once == at_once]
        means = [f"{100 * fmean(row.found[way] for row in some):.1f}" for way in WAYS]
        lines.append([f"{len(some)} drawn runs, {at_once} at once", *means])
    less = _behind(drawn)
    return table(["% of prompts' tokens found", *WAYS], lines) + (
        f"\n\nOf {len(drawn)} drawn runs {sum(each > 0 for each in less)} find less than without, "
        f"at most {max(less):.1f} points."
    )


def _behind(rows: Sequence[Row]) -> list[float]:
    """Return how much less is found, in points."""
    return [100 * max(0.0, row.found[WITHOUT] - row.found[WITH]) for row in rows]


def figures(rows: Sequence[Row]) -> list[Figure]:
    drawn = [row for row in rows if row.flow != DEBATE]
    longer = [100 * (row.took_s[WITH] / row.took_s[WITHOUT] - 1) for row in drawn]
    name, unit = "less found with the order than without", f"points, {len(drawn)} runs"
    less = gap_figures(name, _behind(drawn), unit, mean=0.01, worst=0.1)
    name, unit = "time with the order over that without", f"%, {len(drawn)} runs"
    return less + gap_figures(name, longer, unit, mean=0.0, worst=5.0)


STUDY = Study(
    title="What the kept order finds in prefix caches",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
