"""Beyond the paper: recorded agents that nobody tuned for.

Coding agents, a customer service, two groups of generalists, with their recorded lengths, branches
and gaps (`workloads.py`). Expected: the order is worth less than on the paper's applications, since
their lengths follow less from who calls; what is cached is worth more.
"""

from functools import partial

from experiments.claim import Claim, tables_of
from experiments.grids import Grid

GRID = Grid(workloads=("claude_code", "tau_bench", "magentic_one", "ag2"), seeds=5)
CLAIM = Claim(
    title="Recorded agents",
    grids=(GRID,),
    section=partial(tables_of, GRID),
    against="least-kv",
)
