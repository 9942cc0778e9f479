"""`python -m experiments.row_lengths`: what it gains to take the rows of a table by their length.

Halo orders independent calls by length where nothing else decides (section 3.3). Drawn are chains
of one to four LLM operators over 30 to 200 rows, whose texts differ in length up to 120 times, on
one or two simulated engines of 8 to 256 calls with small and large memories. Each table is run as
it is, with its longest rows first, and with its shortest rows first. Answers have lengths that
nobody knows. Prints by how much the runs differ. A minute of one core.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean

from msgspec.structs import replace

from experiments.flow_workloads import words
from kairos import flow
from kairos.core import PLACEMENTS, POLICIES
from kairos.engines import load_profile
from kairos.simulate.flow_simulation import PoolOptions, simulate_flow
from kairos.workflows import Functions, Plan

Rows = Sequence[Mapping[str, str]]
WAYS: dict[str, Callable[[Rows], Rows]] = {
    "as they are": lambda rows: rows,
    "longest first": lambda rows: sorted(rows, key=lambda row: -len(row["text"])),
    "shortest first": lambda rows: sorted(rows, key=lambda row: len(row["text"])),
}
_FLOWS = 60
_NOTHING = 0.005  # a difference below which runs are alike


def drawn(seed: int) -> tuple[Plan, Rows, PoolOptions]:
    """Return a flow, its table and a pool."""
    draw = Random(seed)  # noqa: S311
    f = flow.Flow("lengths", max_tokens=draw.choice((20, 60, 200)), on_cut="keep")
    row = f.input("row")
    said = row["question"]
    for at in range(draw.randint(1, 4)):
        if draw.random() < 0.6 or at == 0:
            said = f.llm(f"o{at}", "{{ row.text }} {{ said }}", row=row, said=said)
        else:
            said = f.llm(f"o{at}", "{{ said }}", said=said)
    f.output("said", said)
    spread, four = draw.choice((3, 30)), (1, 1, 1, 4)
    rows = [
        {
            "question": f"question {number}",
            "text": words(
                f"{seed}/{number}", round(40 * spread ** draw.random() * draw.choice(four))
            ),
        }
        for number in range(draw.choice((30, 80, 200)))
    ]
    engine = replace(
        load_profile("a40-llama3-8b"),
        max_num_seqs=draw.choice((8, 32, 256)),
        kv_tokens=draw.choice((16_000, 200_000)),
    )
    pool = PoolOptions(
        instances=draw.choice((1, 2)),
        profile=engine,
        policy=POLICIES["kairos"],
        placement=PLACEMENTS["kairos"],
    )
    return f.compile(flow.Passes(cached=False)), rows, pool


def main() -> None:
    gaps: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(_FLOWS):
        plan, rows, pool = drawn(seed)
        took = {
            way: simulate_flow(plan, iter(order(rows)), Functions(), pool).simulated_s
            for way, order in WAYS.items()
        }
        for way, seconds in took.items():
            gaps[way].append(seconds / took["as they are"] - 1)
    for way, each in gaps.items():
        sooner, later = (sum(sign * gap > _NOTHING for gap in each) for sign in (-1, 1))
        print(
            f"{way}: {100 * fmean(each):+.1f} % ({100 * min(each):+.1f} to {100 * max(each):+.1f})"
            f"; sooner in {sooner}, later in {later} of {len(each)}"
        )


if __name__ == "__main__":
    main()
