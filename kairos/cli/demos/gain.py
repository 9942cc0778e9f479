"""Gain of an order on the demo's tasks, in virtual time: the demo's verdict.

Two real runs on a CPU with other load differ by more than most orders do. So the demo is decided on
the model of its engines: the calls of its applications, as recorded on the real model, under both
orders, over 30 seeds, each with other tasks and arrivals. The same command gives the same figures
on every machine.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from kairos.cli.demos.engines import LENGTHS, Kind
from kairos.core import Interval, ratio_interval
from kairos.simulate import Simulation, SimulationOptions, prepare_simulation

SEEDS = 30
TASKS = 60  # of each seed: enough for a queue to build up and to drain
PROFILES: dict[Kind, str] = {"llama": "cpu-smollm2", "sim": "cpu-smollm2", "vllm": "cpu-tiny"}


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of tasks under two orders, by application and for `all`, and their ratio."""

    policies: tuple[str, str]
    seeds: int
    tasks: int  # of each seed
    instances: int
    profile: str
    seconds: dict[str, tuple[Interval, Interval]]
    ratio: Interval  # of the means over all tasks, paired by seed

    @property
    def is_sure(self) -> bool:
        """Return whether the 95 % interval of the ratio leaves out 1."""
        return not self.ratio.low <= 1 <= self.ratio.high


def simulated_gain(
    kind: Kind,
    policies: tuple[str, str],
    placement: str,
    instances: int,
    rate_per_s: float,
    *,
    arrivals: str,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Gain:
    """Compare two orders on the model of the demo's engines. Takes some seconds of CPU time.

    Each order has `instances` engines. `rate_per_s` is the mean rate of tasks. `on_progress`
    receives a message after each second of virtual time. Raises SetupError: An order, a placement
    or an arrival process is unknown.
    """
    first, second = policies
    asked = SimulationOptions(
        workflows=LENGTHS,
        policy=first,
        versus=second,
        placement=placement,
        instances=instances,
        profile=PROFILES[kind],
        rate=rate_per_s,
        arrivals=arrivals,
        count=TASKS,
        seed=1,
        seeds=SEEDS,
    )

    def show(simulation: Simulation) -> None:
        done = simulation.done // len(policies)
        on_progress(f"virtual time: {done} of {SEEDS} seeds")

    simulation = prepare_simulation(asked, show)
    simulation.run()
    return _gain(simulation, policies, instances, PROFILES[kind])


def _gain(simulation: Simulation, policies: tuple[str, str], instances: int, profile: str) -> Gain:
    record = simulation.summarise()
    first, second = (record["intervals"][policy] for policy in policies)
    apps = {name: (first["apps"][name], second["apps"][name]) for name in first["apps"]}
    ours, theirs = ([run["e2e_s"]["mean"] for run in simulation.results[name]] for name in policies)
    found = ratio_interval(ours, theirs)
    assert found is not None  # there are SEEDS pairs, of times above 0
    return Gain(
        policies=policies,
        seeds=SEEDS,
        tasks=TASKS,
        instances=instances,
        profile=profile,
        seconds={
            name: (_mean_of(one), _mean_of(other))
            for name, (one, other) in {**apps, "all": (first, second)}.items()
        },
        ratio=found,
    )


def _mean_of(intervals: dict[str, Any]) -> Interval:
    return msgspec.convert(intervals["e2e_s"]["mean"], Interval)
