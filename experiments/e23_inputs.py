"""What was put in, 50 % lower and higher: do the conclusions stand?

Answers' lengths and the chances of branches are partly guesses (`simulate/workload/applications`).
So the comparison of figure 15 is made again with all answers half and one and a half times as
long, and with every branch half and one and a half times as likely. Expected: the same conclusions.
"""

from functools import partial

from experiments.claim import END_TO_END, PROGRAM_LEVEL, Claim, tables_of
from experiments.grids import Grid

GRID = Grid(
    workloads=(
        "answers half as long",
        "answers 1.5 times as long",
        "branches half as likely",
        "branches 1.5 times as likely",
    ),
    combinations=("parrot", "ayo", "least-kv", "kairos, paper", "kairos", "oracle"),
    loads=("high",),
    seeds=5,
)
CLAIM = Claim(
    title="Inputs 50 % lower and higher",
    grids=(GRID,),
    section=partial(tables_of, GRID),
    against="parrot",
    metrics=(PROGRAM_LEVEL, END_TO_END),
)
