"""Section 6: how long a slot of the future should be.

The paper: shorter slots are finer and cost more; half a second is a good trade-off, found by trial;
it gives no figure. Their number is fixed here (48), so shorter ones look less far ahead: 0.1 s sees
4.8 s, 5 s sees four minutes. Expected: from a second down little difference, since calls last tens
of seconds; long slots see ends too late and leave memory empty.
"""

from functools import partial

from experiments.claim import Claim, tables_of
from experiments.combinations import SLOTTED
from experiments.grids import Grid

GRID = Grid(
    workloads=("colocated-13b",),
    combinations=("kairos, paper", *SLOTTED),
    loads=("middle", "high"),
    seeds=5,
)
CLAIM = Claim(
    title="Section 6: the length of a slot",
    grids=(GRID,),
    section=partial(tables_of, GRID),
    against="kairos, paper",
)
