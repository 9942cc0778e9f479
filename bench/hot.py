"""`python -m bench.hot` (`make bench-hot`): has a call become dearer? At most 90 seconds.

What Kairos costs as a ratio to vllm-router, which is measured in the same rounds; and what its
brain costs as a ratio to a reference computation. CPU time, medians of interleaved rounds. Compared
with bench/budget.toml: a figure 25 % above its budget is measured once more, with more rounds, and
if it still is this fails. `--lower` writes what was measured where a budget was higher.
"""

import argparse
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import uvloop
from rich.console import Console
from rich.table import Table

import kairos
from bench import budget, load, micro, report, rows, scenarios
from bench.budget import ALLOWED, Budget, Ratio
from bench.load import Control
from bench.scenarios import Measured
from bench.servers import NotStarted
from bench.systems import SideBySide, System, side_by_side

ROUNDS, MORE_ROUNDS = 6, 8
LIMIT_S = 85.0
BRAIN = "brain's CPU per call, {} instances"
BRAIN_INSTANCES = (1, 64)


class Scenario(Protocol):
    def __call__(
        self, system: System, control: Control, calls: int
    ) -> Coroutine[Any, Any, Measured]: ...


# By the figure: how it is measured, and with how many calls a round.
BESIDE_PEER: Mapping[str, tuple[Scenario, int]] = {
    scenarios.NAMED: (scenarios.cpu_json, 400),
    scenarios.ANONYMOUS: (scenarios.cpu_anonymous, 300),
    scenarios.CONVERSATION: (scenarios.cpu_conversation, 250),
    scenarios.STREAM: (scenarios.cpu_stream, 300),
    scenarios.SLOW_STREAM: (scenarios.cpu_slow_stream, 128),
}
BESIDE_REFERENCE = {BRAIN.format(number): number for number in BRAIN_INSTANCES}
LATENCY_CALLS = 200
# Told, and not compared: where others use the machine it moves by more than a quarter.
INFORMAL = scenarios.ADDED


async def beside_peer(
    made: SideBySide, names: Iterable[str], rounds: int, until: float
) -> dict[str, Ratio]:
    """By figure. The systems take turns at going first. Not all rounds where time is up; at least
    one."""
    _, ours, theirs = made.systems
    values: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for number in range(rounds):
        if number and time.monotonic() > until:
            break
        for name, of_name in values.items():
            scenario, calls = BESIDE_PEER[name]
            for system in (ours, theirs) if number % 2 else (theirs, ours):
                measured = await scenario(system, made.control, calls)
                of_name.setdefault(system.name, []).append(measured[name])
    return {name: budget.ratio(of[ours.name], of[theirs.name]) for name, of in values.items()}


async def added_latency(made: SideBySide, rounds: int) -> Ratio:
    values: dict[str, list[float]] = {system.name: [] for system in made.systems}
    for _ in range(rounds):
        for system in made.systems:
            measured = await scenarios.latency(system, made.control, LATENCY_CALLS)
            values[system.name].append(measured[scenarios.LATENCY])
    alone, ours, theirs = (values[system.name] for system in made.systems)
    return budget.ratio(_above(ours, alone), _above(theirs, alone))


def _above(values: Sequence[float], alone: Sequence[float]) -> list[float]:
    return [value - without for value, without in zip(values, alone, strict=True)]


def beside_reference(names: Iterable[str], rounds: int) -> dict[str, Ratio]:
    taken: dict[str, list[float]] = {name: [] for name in names}
    reference = []
    for _ in range(rounds):
        reference.append(micro.reference())
        for name, values in taken.items():
            values.append(micro.brain(BESIDE_REFERENCE[name]))
    return {name: budget.ratio(values, reference) for name, values in taken.items()}


async def measure(console: Console, budgets: Mapping[str, Budget]) -> dict[str, Ratio]:
    """Each figure that has a budget; those above it, twice."""
    ends_at = time.monotonic() + LIMIT_S
    async with side_by_side(console) as made:

        async def measured(names: Sequence[str], rounds: int) -> dict[str, Ratio]:
            of_peer = [name for name in names if name in BESIDE_PEER]
            of_brain = [name for name in names if name in BESIDE_REFERENCE]
            found = beside_reference(of_brain, rounds)
            return found | await beside_peer(made, of_peer, rounds, ends_at)

        found = await measured([*BESIDE_REFERENCE, *BESIDE_PEER], ROUNDS)
        informal = await added_latency(made, ROUNDS // 2)
        if again := budget.over(found, budgets):
            for name in again:
                console.print(f"{name}: {found[name]}, above its budget: measured once more")
            found |= await measured(again, MORE_ROUNDS)
    show(found, informal, budgets, console)
    return found


def show(
    found: Mapping[str, Ratio], informal: Ratio, budgets: Mapping[str, Budget], console: Console
) -> None:
    table = Table(title="Ratios of medians; in brackets the lowest and the highest round")
    for heading in ("", "measured", "budget", "fails above"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, told in found.items():
        limit = budgets[name].ratio if name in budgets else None
        row = ("-", "-") if limit is None else (f"{limit:g}", f"{limit * ALLOWED:.2f}")
        table.add_row(name, str(told), *row)
    table.add_row(INFORMAL, str(informal), "for information", "-")
    console.print(table)


def verdict(found: Mapping[str, Ratio], budgets: Mapping[str, Budget]) -> str | None:
    """What is wrong. None: nothing."""
    dear = budget.over(found, budgets)
    wrong = [budget.complaint(name, found[name], budgets[name]) for name in dear]
    wrong += [
        f"{name}: bench/budget.toml and bench/hot.py must have the same figures"
        for name in budget.missing(found, budgets)
    ]
    return "\n".join(wrong) or None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hot", description=__doc__)
    parser.add_argument("--lower", metavar="REASON", help="lower budgets to what is measured now")
    arguments = parser.parse_args()
    console = report.console()
    by_processor = budget.read()
    processor = budget.key(by_processor, rows.processor())
    budgets = by_processor[processor]
    console.print(f"Budgets of the processor: {processor}; with the brain compiled")
    if not kairos.is_compiled:
        console.print("Here the brain is not compiled, and a call costs more: `make compile`")
    try:
        found = uvloop.run(measure(console, budgets))
    except* (NotStarted, load.Broken) as group:
        sys.exit(f"bench: {group.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit(130)
    if arguments.lower:
        today = datetime.now(UTC).date().isoformat()
        lowered = budget.lowered(found, budgets, f"{today}: {arguments.lower}")
        budget.write(by_processor | {processor: lowered})
    elif loose := budget.loose(found, budgets):
        console.print(
            f"Far below their budgets: {'; '.join(loose)}. `python -m bench.hot --lower REASON` "
            "keeps that."
        )
    if wrong := verdict(found, budgets):
        sys.exit(wrong)


if __name__ == "__main__":
    main()
