"""Figure 14 (7.2): each application alone, Llama-3-8B.

The paper, over nine workloads: Kairos' latency per token is below Parrot's by 17.8 to 28.4 % in the
mean, and below Ayo's by 5.8 to 10.8 %; P90 by 19.1 to 28.6 % and 13.4 to 20.2 %. Expected: as much
where branches differ (QA); little where a workflow is a chain, of which Ayo knows the depth.

Found: QA as in the paper, or better, in the mean; its P99 end to end is half to two thirds above
Parrot's, since one branch waits for the other. RG and CG are chains of much the same length, so
Ayo, which knows how many calls are left, has the order that can be learnt, and ours is within 3 %
of it per token, within 1.7 % end to end. What the oracle gains beyond that is the length of each
answer before it is given; these models draw them independently of anything that a call says.

Not reproduced, since their data sets cannot be had: M+W (WorldHistoryQA), NCD, APPS. One instance
each, not four, so that a minute of computing fills its queue: packing has nothing to choose there.
"""

from experiments.claim import END_TO_END, PROGRAM_LEVEL, Claim, View, at_loads, reductions
from experiments.grids import Grid

PAPER = {
    ("parrot", "mean"): (17.8, 28.4),
    ("parrot", "p90"): (19.1, 28.6),
    ("ayo", "mean"): (5.8, 10.8),
    ("ayo", "p90"): (13.4, 20.2),
}
DATA_SETS = {
    "qa": "QA, G+M",
    "qa-ss": "QA, S+S",
    "rg": "RG, TQ",
    "rg-nq": "RG, NQ",
    "cg": "CG, HE",
    "cg-mbpp": "CG, MBPP",
}
OURS = ("kairos", "kairos, paper", "oracle")
GRID = Grid(
    workloads=tuple(DATA_SETS),
    combinations=("parrot", "ayo", *OURS),
    seeds=5,
)


def section(view: View) -> str:
    of = view.found(GRID)
    return "\n\n".join(
        f"{shown}:\n\n{reductions(at_loads(of, workload), PAPER, OURS)}"
        for workload, shown in DATA_SETS.items()
    )


CLAIM = Claim(
    title="Figure 14: each application alone",
    grids=(GRID,),
    section=section,
    against="parrot",
    metrics=(PROGRAM_LEVEL, END_TO_END),
)
