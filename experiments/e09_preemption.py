"""Section 2.2.3: what round-robin wastes. Requests preempted, and memory wasted by it.

The paper, at 8 requests per second on four A40 with Llama-3-8B: 18.4 % of the requests are
preempted, and 14.2 % of the memory is wasted. Which rate its pool takes is not said; here are the
three loads. Tokens computed again stand for memory wasted, which the paper does not define.
Expected: preemptions under round-robin, next to none under the default.

Not reproduced for Llama-3-8B: an A40 beside its weights holds 199,000 tokens, 779 for each of 256
sequences, and calls of these applications have fewer on average, so memory is never short. The
paper does not say what its calls' contexts are, nor how much of the card vLLM was given. With
Llama-2-13B, of which it holds a tenth, memory is short.
"""

from experiments.claim import Claim, View, at_loads, table
from experiments.grids import Grid, mean_known

COMPARED = ("parrot", "ayo", "least-kv", "kairos, paper", "kairos", "oracle")
GRID = Grid(workloads=("colocated-8b", "colocated-13b"), combinations=COMPARED)


def section(view: View) -> str:
    of = view.found(GRID)
    rows = [
        [
            f"{workload}, {load}: {name}",
            "18.4 %; 14.2 %" if (workload, name) == ("colocated-8b", "parrot") else "not said",
            f"{mean_known(run.preempted_share for run in runs[name].values()):.1%}",
            f"{mean_known(run.preemptions_per_call for run in runs[name].values()):.3f}",
            f"{mean_known(run.recomputed_token_share for run in runs[name].values()):.1%}",
        ]
        for workload in GRID.workloads
        for load, runs in at_loads(of, workload).items()
        for name in COMPARED
        if name in runs
    ]
    header = ["", "paper", "calls preempted", "preemptions per call", "tokens computed again"]
    return table(header, rows)


CLAIM = Claim(title="Preemptions under round-robin", grids=(GRID,), section=section)
