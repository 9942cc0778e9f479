"""Figure 17 (7.5): the three applications on a larger model, Llama-2-13B, whose memory binds.

The paper: Kairos' latency per token is below Parrot's by 42.1 to 57.4 % in the mean, and below
Ayo's by 21.8 to 24.6 %. Expected: the same, and fewer preemptions.

Found: per token as in the paper, or better. P99 end to end is 4 to 8 % above that of the paper's
Kairos, which is the price of the order: the oracle's is higher still.
"""

from functools import partial

from experiments.claim import END_TO_END, PROGRAM_LEVEL, Claim, beside_paper
from experiments.e15_colocated import OURS
from experiments.grids import Grid

WORKLOAD = "colocated-13b"
PAPER = {
    ("parrot", "mean"): (42.1, 57.4),
    ("parrot", "p90"): (43.1, 56.6),
    ("parrot", "p95"): (48.1, 57.1),
    ("parrot", "p99"): (56.8, 70.6),
    ("ayo", "mean"): (21.8, 24.6),
    ("ayo", "p90"): (23.2, 25.9),
    ("ayo", "p95"): (18.4, 21.4),
    ("ayo", "p99"): (22.6, 37.9),
}
GRID = Grid(workloads=(WORKLOAD,))


CLAIM = Claim(
    title="Figure 17: the same on a larger model, Llama-2-13B",
    grids=(GRID,),
    section=partial(beside_paper, GRID, PAPER, OURS),
    against="parrot",
    metrics=(PROGRAM_LEVEL, END_TO_END),
)
