"""Section 7.7: what deciding costs.

The paper: 0.1 to 4.3 s to rank 10 to 5,000 agents, 3.6 ms to sort the queue for a request, 4.1 ms
to pack it; it does not say how many requests wait, nor on how many instances. Ours are CPU time of
one core, as `make bench` measures it, with 100,000 requests in the queue and 64 instances of 200
calls each. The machine differs from the paper's, so only the sizes compare. Expected: each below
the paper's. Two minutes.
"""

from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from bench import learning, placement
from experiments.claim import Study, table
from experiments.report import commit
from kairos.core import AgentProfile

ROUNDS = 5
FEWEST, MOST = min(learning.AGENTS), max(learning.AGENTS)
_POOL = (placement.WHOLE.size.instances, placement.WHOLE.size.running)
_WHERE = (*_POOL, placement.ROOMS["all"], placement.PREFIXES[True])
# name of the figure -> unit, the paper's
PAPER = {
    learning.EMBED.format(FEWEST): ("ms", "100"),
    learning.EMBED.format(MOST): ("ms", "4,300"),
    learning.PLACE: ("us", "not said"),
    learning.LEARN: ("us", "not said"),
    learning.PUSH: ("us", "3,600 to sort"),
    learning.POP: ("us", "the same"),
    placement.DECISION.format("time-slot", *_WHERE): ("us", "4,100"),
    placement.DECISION.format("kairos", *_WHERE): ("us", "4,100"),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. Values by round."""

    commit: str
    name: str
    values: list[float]


def measure(quick: bool) -> Iterator[Row]:
    from threadpoolctl import threadpool_limits  # of scikit-learn

    values: dict[str, list[float]] = {}
    with threadpool_limits(1):
        profiles = learning.Agents(MOST, seed=0).profiles()
        learning.changed_agent(0, profiles[:FEWEST])  # what is imported with it is not its cost
        for number in range(1 if quick else ROUNDS):
            for name, value in _round(number, profiles).items():
                values.setdefault(name, []).append(value)
    at_commit = commit()
    for name in PAPER:
        yield Row(commit=at_commit, name=name, values=[float(f"{v:.4g}") for v in values[name]])


def _round(number: int, profiles: list[AgentProfile]) -> dict[str, float]:
    decided = placement.decisions(
        *(placement.WHOLE, placement.WHOLE.size, "all", number), prefixes=True
    )
    return {
        **learning.ranking(FEWEST, profiles),
        **learning.ranking(MOST, profiles),
        **learning.changed_agent(number, profiles),
        **learning.learning_event(number),
        **learning.queueing(number),
        **{name: rounds[0]["mean"] for name, rounds in decided.items()},
    }


def section(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        unit, said = PAPER[row.name]
        here = f"{median(row.values):.4g} [{min(row.values):.4g}, {max(row.values):.4g}]"
        lines.append([f"{row.name}, {unit}", said, here])
    return table(["median of rounds, lowest, highest", "paper", "here"], lines)


STUDY = Study(title="Section 7.7: overhead", row=Row, measure=measure, section=section)
