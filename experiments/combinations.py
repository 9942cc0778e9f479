"""What is compared: policies and placements, by the names that reports give them together.

Beside those of Kairos there are some that only a comparison needs: two baselines as they were
published, and what knows the future (`baselines.py`).
"""

import msgspec

from experiments.baselines import (
    AYO_PUBLISHED,
    DEFAULT,
    MISJUDGED_TIMES,
    ORACLE,
    PROGRAMS,
    SLOT_LENGTHS_S,
    SRPT,
    off,
    slotted,
)


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and a placement. `live`: it needs nothing that only a simulation knows."""

    policy: str
    placement: str
    what: str
    live: bool = True


COMBINATIONS: dict[str, Combination] = {
    "parrot": Combination(
        policy="fcfs",
        placement="round-robin",
        what="Parrot as the Kairos paper describes it (2.2.1): call by call as they come, each to "
        "the next instance in turn",
    ),
    "parrot, published": Combination(
        policy="fcfs",
        placement="affinity",
        what="Parrot's placement goes by prefixes that instances hold; its groups of tasks need a "
        "program that declares its data flow, which agents here do not",
    ),
    "ayo": Combination(
        policy="ayo",
        placement="round-robin",
        what="Ayo as the Kairos paper describes it (2.2.1): fewest remaining stages first, of all "
        "workflows; stages are learnt here, not declared",
    ),
    "ayo, published": Combination(
        policy=AYO_PUBLISHED,
        placement="round-robin",
        what="Ayo's topology-aware batching: the workflow of which a call came first, and of its "
        "calls those with most stages to come",
    ),
    "las": Combination(
        policy="las",
        placement="least-kv",
        what="least attained service of the workflow first, as Autellix and llm-d",
    ),
    "least-kv": Combination(
        policy="fcfs",
        placement="least-kv",
        what="a good balancer that knows calls only: as they come, to the emptiest instance",
    ),
    "programs": Combination(
        policy=PROGRAMS,
        placement=PROGRAMS,
        what="program scheduling in the manner of vllm-router (`program_scheduling.py`)",
    ),
    "kairos, paper": Combination(
        policy="wasserstein-mds",
        placement="time-slot",
        what="Kairos as its paper has it (5, 6)",
    ),
    "kairos, least-kv": Combination(
        policy=DEFAULT, placement="least-kv", what="our order alone, before a good placement"
    ),
    "kairos": Combination(policy=DEFAULT, placement=DEFAULT, what="ours, the default"),
    "kairos, lengths known": Combination(
        policy=DEFAULT,
        placement=ORACLE,
        what="ours, told the length of every answer",
        live=False,
    ),
    "oracle": Combination(
        policy=SRPT,
        placement=ORACLE,
        what="least true remaining work first, and every length known",
        live=False,
    ),
}

# Our order before each placement: what placement alone is worth (`e07_placements.py`).
PLACED: dict[str, Combination] = {
    f"kairos, {placement}": Combination(
        policy=DEFAULT, placement=placement, what=f"our order before the placement {placement}"
    )
    for placement in ("round-robin", "power-of-two", "affinity", "time-slot")
}
# The paper's two halves, each without the other (7.6).
ABLATED: dict[str, Combination] = {
    "kairos, paper, without priority": Combination(
        policy="fcfs", placement="time-slot", what="the paper's packing alone"
    ),
    "kairos, paper, without packing": Combination(
        policy="wasserstein-mds", placement="round-robin", what="the paper's order alone"
    ),
    "kairos, without priority": Combination(
        policy="fcfs", placement=DEFAULT, what="our packing alone"
    ),
}
# Ours, with every estimate of what is left off by a factor.
MISJUDGED: dict[str, Combination] = {
    off(times): Combination(
        policy=off(times),
        placement=DEFAULT,
        what=f"ours, with every workflow's estimate off by a factor, e^N(0, ln {times})",
    )
    for times in MISJUDGED_TIMES
}
# The paper's, with slots of other lengths (6).
SLOTTED: dict[str, Combination] = {
    f"kairos, paper, slots of {slot_s:g} s": Combination(
        policy="wasserstein-mds",
        placement=slotted(slot_s),
        what=f"the paper's, with slots of {slot_s:g} s",
    )
    for slot_s in SLOT_LENGTHS_S
}
ALL = COMBINATIONS | PLACED | ABLATED | MISJUDGED | SLOTTED
