"""Section 6: how long a slot of the future should be.

The paper: shorter slots are finer and cost more; half a second is a good trade-off, found by trial;
it gives no figure. Their number is fixed here, and they widen with distance, so shorter first ones
look less far ahead: 0.1 s sees thirteen minutes, 5 s sees ten hours. Expected: from a second down
little difference, since calls last tens of seconds; long slots see ends too late and leave memory
empty.

Found: of slots from 0.1 to 5 s none is better or worse than half a second, by half a percent end to
end and 3 % per token, at either load. So half a second is as good as any, and finer ones are not
worth what they cost. Why long ones do no harm was not looked into. (The rows are of 48 slots, all
as long: 0.1 s saw 4.8 s, 5 s saw four minutes.)
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
