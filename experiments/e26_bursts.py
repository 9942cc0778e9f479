"""Bursts: arrivals as in Azure's code trace, of which gaps vary 13 times as much as their mean.

Expected: between bursts there is no queue, within one there is nothing else; so order counts more.

Found: as much as with Poisson arrivals, not more: 32 % under `fcfs` at high load, 26 % at middle
load. Under the paper's Kairos by 3 and 12 %, which differs much by seed.
"""

from functools import partial

from experiments.claim import END_TO_END, PROGRAM_LEVEL, Claim, tables_of
from experiments.grids import Grid

GRID = Grid(
    workloads=("bursts",),
    combinations=("parrot", "ayo", "least-kv", "kairos, paper", "kairos", "oracle"),
    seeds=5,
)
CLAIM = Claim(
    title="Bursts",
    grids=(GRID,),
    section=partial(tables_of, GRID),
    against="parrot",
    metrics=(PROGRAM_LEVEL, END_TO_END),
)
