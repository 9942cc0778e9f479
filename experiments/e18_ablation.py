"""Figure 18 (7.6): what the order is worth, and what the packing, each taken away from the whole.

The paper: where half of the time is queueing, the order makes Kairos 1.63 times as quick per token,
and packing 1.12 times; over all rates the order saves 38.8 to 69.6 %, packing 9.5 to 10.6 %.
Expected: the order is worth most; packing little where compute binds (Llama-3-8B), more where
memory does (Llama-2-13B).

Found: the order is worth more than in the paper. Our packing is worth nothing in the mean where
compute binds, and 1 to 3 % per token where memory does. The paper's makes things worse there: it
takes every call to last as long as its agent's most often do, which is shorter than the mean, so it
books too little, and preempts more than round-robin.
"""

from experiments.claim import END_TO_END, PROGRAM_LEVEL, Claim, View, at_loads, change, table
from experiments.grids import E2E, PER_TOKEN, Grid, ratio

HALVES = {
    "kairos, paper": {
        "order": "kairos, paper, without priority",
        "packing": "kairos, paper, without packing",
    },
    "kairos": {"order": "kairos, without priority", "packing": "kairos, round-robin"},
}
PAPER = {"order": "1.63 times; -38.8 .. -69.6", "packing": "1.12 times; -9.5 .. -10.6"}
GRID = Grid(
    workloads=("colocated-8b", "colocated-13b"),
    combinations=tuple(name for of in HALVES.values() for name in of.values()) + tuple(HALVES),
)


def section(view: View) -> str:
    of = view.found(GRID)
    rows: list[list[str]] = []
    loads: list[str] = []
    for workload in GRID.workloads:
        runs_at = at_loads(of, workload)
        loads = list(runs_at)
        for whole, halves in HALVES.items():
            for half, without in halves.items():
                for metric, what in ((PER_TOKEN, "s/token"), (E2E, "end to end")):
                    times = 1 / ratio(runs_at["middle"], whole, without, metric).mean
                    rows.append([f"{workload}, {whole}: {half}, mean {what}"])
                    rows[-1] += [PAPER[half] if what == "s/token" else "not said", f"{times:.2f}"]
                    rows[-1] += [
                        change(ratio(runs, whole, without, metric)) for runs in runs_at.values()
                    ]
    header = ["", "paper", "times as quick, middle", *(f"below, in %: {each}" for each in loads)]
    return table(header, rows)


CLAIM = Claim(
    title="Figure 18: order and packing, each taken away",
    grids=(GRID,),
    section=section,
    against="kairos",
    metrics=(PROGRAM_LEVEL, END_TO_END),
)
