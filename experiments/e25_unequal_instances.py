"""A pool of unequal instances: every second one with half the memory and half the speed.

Expected: who goes by memory and speed (`kairos`) gains on who goes by turns; a larger share of the
work goes to the larger instances.

Found: with the order, 9 to 35 % under `least-kv` with `fcfs`; the placement alone, under our order,
is worth 1.6, 0.7 and 0.6 % from low to high load. Which share of the work goes where is not in the
rows.
"""

from functools import partial

from experiments.claim import Claim, tables_of
from experiments.grids import Grid

GRID = Grid(
    workloads=("unequal instances",),
    combinations=("parrot", "ayo", "least-kv", "kairos, paper", "kairos, least-kv", "kairos"),
    seeds=5,
)
CLAIM = Claim(
    title="Unequal instances",
    grids=(GRID,),
    section=partial(tables_of, GRID),
    against="least-kv",
)
