"""What if estimates are wrong: agents that change their ways, and errors put in on purpose.

Halfway through a run, whoever of an application's agents gave the longest answers gives the
shortest, and so on; and every estimate of what is left of a workflow is off by a factor of 2 or 4
(log-normal). Expected: ours learns anew within the run, and comes to what `least-kv` with `fcfs`
makes of it at worst: an order without any knowledge.
"""

from experiments.claim import Claim, View, tables_of
from experiments.grids import Grid

TURN = Grid(
    workloads=("agents change",),
    combinations=("parrot", "ayo", "las", "least-kv", "kairos, paper", "kairos", "oracle"),
    loads=("high",),
    seeds=5,
)
ERRORS = Grid(
    workloads=("colocated-8b", "colocated-13b"),
    combinations=("least-kv", "kairos", "kairos, off 2 times", "kairos, off 4 times"),
    loads=("high",),
    seeds=5,
)


def section(view: View) -> str:
    return f"{tables_of(TURN, view)}\n\n{tables_of(ERRORS, view)}"


CLAIM = Claim(
    title="Wrong estimates",
    grids=(TURN, ERRORS),
    section=section,
    against="least-kv",
)
