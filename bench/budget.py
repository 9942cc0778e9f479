"""What a call may cost beside vllm-router: `bench/budget.toml`, and whether a measurement keeps it.

A budget is a ratio to the peer, or to a reference computation. Such a ratio differs by processor,
by half and more: the peer's compiled loops, calls of the kernel and our interpreter are not slower
by the same. So there are budgets for each kind of processor, and those of `OTHERS` for the rest.
They go down by command (`python -m bench.hot --lower`); one goes up by hand, with its reason in the
file.
"""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

BUDGET = Path(__file__).with_name("budget.toml")
ALLOWED = 1.25  # times a budget
LOOSE = 1.25  # a budget of more than so many times what is measured can go down
STEP = 100  # of a ratio: budgets are written in hundredths
OTHERS = "others"  # processors that have no budgets of their own

_HEAD = """\
# What each call may cost, as a ratio to vllm-router in the same run, and what the brain may, as a
# ratio to a reference computation (`make bench-hot`), by processor. A ratio 25 % above its budget
# fails. Budgets go down by `python -m bench.hot --lower REASON`; one goes up by hand, with a reason
# and the date.
"""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ratio: float
    reason: str  # with the date


class Ratio(msgspec.Struct, frozen=True):
    """One figure over the rounds, each in the units of the same round's reference."""

    median: float
    lowest: float
    highest: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.lowest:.2f}-{self.highest:.2f}]"


def ratio(ours: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Pairs of the same round: what else the machine did hit both. The ratio of the medians, since
    the median of few ratios jumps with each of both."""
    each = [a / b for a, b in zip(ours, reference, strict=True)]
    median = statistics.median(ours) / statistics.median(reference)
    return Ratio(median, min(*each, median), max(*each, median), len(each))


Budgets = dict[str, Budget]  # by figure


def read(path: Path = BUDGET) -> dict[str, Budgets]:
    """By processor."""
    return msgspec.convert(tomllib.loads(path.read_text()), dict[str, Budgets])


def key(by_processor: Mapping[str, Budgets], processor: str) -> str:
    """Under which the budgets for it are: the one that says most of it."""
    known = [each for each in by_processor if processor.startswith(each)]
    return max(known, key=len, default=OTHERS)


def write(by_processor: Mapping[str, Budgets], path: Path = BUDGET) -> None:
    entries = (
        f"\n[{_text(processor)}.{_text(name)}]\n"
        f"ratio = {budget.ratio:g}\nreason = {_text(budget.reason)}\n"
        for processor, budgets in by_processor.items()
        for name, budget in budgets.items()
    )
    path.write_text(_HEAD + "".join(entries))


def _text(text: str) -> str:
    """As TOML, which writes strings as JSON does."""
    return msgspec.json.encode(text).decode()


def over(measured: Mapping[str, Ratio], budgets: Mapping[str, Budget]) -> list[str]:
    """The figures that are too far above their budgets."""
    return [
        name
        for name, budget in budgets.items()
        if name in measured and measured[name].median > budget.ratio * ALLOWED
    ]


def complaint(name: str, found: Ratio, budget: Budget) -> str:
    return (
        f"{name}: {found} times the reference, over {found.rounds} rounds. The budget is "
        f"{budget.ratio:g}, and {budget.ratio * ALLOWED:.2f} is where it fails ({budget.reason}). "
        "Something that this change adds to each call costs that much: `make profile` shows where. "
        "If it has to, raise the budget in bench/budget.toml by hand and say why there."
    )


def missing(measured: Mapping[str, Ratio], budgets: Mapping[str, Budget]) -> list[str]:
    """Figures that have no budget, and budgets that have no figure."""
    return sorted(measured.keys() ^ budgets.keys())


def loose(measured: Mapping[str, Ratio], budgets: Mapping[str, Budget]) -> list[str]:
    """The figures whose budgets can go down."""
    return [
        name
        for name, budget in budgets.items()
        if name in measured and measured[name].median * LOOSE < budget.ratio
    ]


def lowered(
    measured: Mapping[str, Ratio], budgets: Mapping[str, Budget], because: str
) -> dict[str, Budget]:
    """Each budget at what was measured, where that is less. None goes up."""
    made = dict(budgets)
    for name, budget in budgets.items():
        if name in measured:
            found = -(-measured[name].median * STEP // 1) / STEP
            if found < budget.ratio:
                made[name] = Budget(found, because)
    return made
