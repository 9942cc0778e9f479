"""Options of `kairos simulate`: the command line, else the scenario, else the defaults."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kairos.core import SetupError
from kairos.settings import Settings, load_settings
from kairos.simulate.plan import INSTANCES, PROFILE, Planner, planner, scenario_planner
from kairos.simulate.simulation import Simulation
from kairos.simulate.workload.load import Load, offered_workload
from kairos.simulate.workload.scenario import Scenario, read

DEFAULTS = Settings()


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command, by their names there; None: not given."""

    workflows: Path | None = None
    scenario: Path | None = None
    policy: str | None = None
    versus: str | None = None
    placement: str | None = None
    instances: int | None = None
    profile: str | None = None
    rate: float | None = None
    arrivals: str | None = None
    count: int | None = None
    seed: int | None = None
    seeds: int = 1
    max_context: int | None = None


class _Runs(msgspec.Struct, frozen=True, kw_only=True):
    """Simulations to run."""

    plan: Planner
    policies: list[str]
    placement: str
    seeds: range


def prepare_simulation(
    asked: SimulationOptions, on_second: Callable[[Simulation], None] = lambda _: None
) -> Simulation:
    """Return the simulation that the options ask for; it has not run.

    `on_second`: see `World`.

    Raises:
        SetupError: It cannot be run; the message says what to change.
    """
    runs = _runs(asked)
    return Simulation(runs.plan, runs.seeds, runs.policies, runs.placement, on_second=on_second)


def _runs(asked: SimulationOptions) -> _Runs:
    if asked.scenario is not None:
        return _of_scenario(asked, asked.scenario)
    if asked.workflows is None:
        raise SetupError("name what is to be run: --workflows FILE, or --scenario FILE")
    load = Load(
        workflows=asked.workflows,
        arrivals=asked.arrivals,
        rate_per_s=asked.rate,
        count=asked.count,
        max_context=asked.max_context,
    )
    policies, placement = _decided(asked, DEFAULTS.policy, None)
    planned = offered_workload(load)
    if asked.seeds > 1 and planned.has_own_instants:
        raise SetupError(
            "the file says when its workflows arrive, for every seed alike: name other arrivals "
            "with --arrivals, or leave out --seeds"
        )
    plan = planner(planned, asked.instances or INSTANCES, asked.profile or PROFILE)
    return _Runs(plan=plan, policies=policies, placement=placement, seeds=_seeds(asked, 1))


def _of_scenario(asked: SimulationOptions, path: Path) -> _Runs:
    said = {
        name: getattr(asked, name)
        for name in ("workflows", "instances", "profile", "rate", "arrivals", "count")
    }
    if given := [f"--{name}" for name, value in said.items() if value is not None]:
        raise SetupError(f"leave out {', '.join(given)}: that stands in the scenario file")
    scenario = _overridden(read(path), asked)
    policies, placement = _decided(asked, scenario.policy, scenario.placement)
    return _Runs(
        plan=scenario_planner(scenario),
        policies=policies,
        placement=placement,
        seeds=_seeds(asked, scenario.seed),
    )


def _seeds(asked: SimulationOptions, default: int) -> range:
    first = default if asked.seed is None else asked.seed
    return range(first, first + asked.seeds)


def _overridden(scenario: Scenario, asked: SimulationOptions) -> Scenario:
    if asked.max_context is None:
        return scenario
    return replace(scenario, max_context_tokens=asked.max_context)


def _decided(asked: SimulationOptions, policy: str, placement: str | None) -> tuple[list[str], str]:
    first = asked.policy or policy
    if asked.versus == first:
        raise SetupError(f"--versus '{first}' compares it with itself: name another policy")
    policies = [first, *([asked.versus] if asked.versus is not None else [])]
    chosen = asked.placement or placement or DEFAULTS.placement
    for name in policies:
        load_settings(None, {}, {"policy": name, "placement": chosen})
    return policies, chosen
