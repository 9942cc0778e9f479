"""Section 7.7: what deciding costs.

The paper: 0.1 to 4.3 s to rank 10 to 5,000 agents, 3.6 ms to sort the queue for a request, 4.1 ms
to pack it; it does not say how many requests wait, nor on how many instances. Ours, of one core,
are what `make bench` measured last, on a machine that differs from the paper's: only their size
compares. Expected: each below the paper's.
"""

import msgspec

from bench.gateway import RESULTS
from bench.report import Figure
from experiments.claim import Claim, View, table

PAPER = (
    ("ranking 10 agents, all anew", "100 ms"),
    ("ranking 5,000 agents, all anew", "4300 ms"),
    ("ranking one changed agent among 5,000", "not said"),
    ("learning one call, with its checks and tests of change", "not said"),
    ("queue of 100,000: push", "3600 us to sort"),
    ("queue of 100,000: pop", "(the same)"),
    (
        "decision: time-slot over 64 instances of 200 calls, room on all, with prefixes",
        "4100 us",
    ),
    ("decision: kairos over 64 instances of 200 calls, room on all, with prefixes", "4100 us"),
)


def section(_: View) -> str:
    known = {
        each.name: each for each in msgspec.json.decode(RESULTS.read_bytes(), type=list[Figure])
    }
    rows = [
        [name, said, f"{known[name].value:g} {known[name].unit}"]
        for name, said in PAPER
        if name in known
    ]
    return table(["", "paper", "here"], rows)


CLAIM = Claim(title="Section 7.7: overhead", grids=(), section=section)
