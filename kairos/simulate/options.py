"""Options of `kairos simulate`: the command line, else the scenario, else the defaults."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kairos.core import SetupError
from kairos.settings import Settings, load_settings
from kairos.simulate.plan import INSTANCES, PROFILE, planner, scenario_planner
from kairos.simulate.simulation import Simulation
from kairos.simulate.workload.load import Load, offered_workload
from kairos.simulate.workload.scenario import read

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


def prepare_simulation(
    asked: SimulationOptions, on_second: Callable[[Simulation], None] = lambda _: None
) -> Simulation:
    """Return the simulation that the options ask for; it has not run.

    `on_second`: see `World`.

    Raises:
        SetupError: It cannot be run; the message says what to change.
    """
    if asked.scenario is not None:
        return _of_scenario(asked, asked.scenario, on_second)
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
    return Simulation(plan, _seeds(asked, 1), policies, placement, on_second=on_second)


def _of_scenario(
    asked: SimulationOptions, path: Path, on_second: Callable[[Simulation], None]
) -> Simulation:
    said = {
        name: getattr(asked, name)
        for name in ("workflows", "instances", "profile", "rate", "arrivals", "count")
    }
    if given := [f"--{name}" for name, value in said.items() if value is not None]:
        raise SetupError(f"leave out {', '.join(given)}: that stands in the scenario file")
    scenario = read(path)
    if asked.max_context is not None:
        scenario = replace(scenario, max_context_tokens=asked.max_context)
    policies, placement = _decided(asked, scenario.policy, scenario.placement)
    plan, seeds = scenario_planner(scenario), _seeds(asked, scenario.seed)
    return Simulation(plan, seeds, policies, placement, on_second=on_second)


def _seeds(asked: SimulationOptions, default: int) -> range:
    first = default if asked.seed is None else asked.seed
    return range(first, first + asked.seeds)


def _decided(asked: SimulationOptions, policy: str, placement: str | None) -> tuple[list[str], str]:
    first = asked.policy or policy
    if asked.versus == first:
        raise SetupError(f"--versus '{first}' compares it with itself: name another policy")
    policies = [first, *([asked.versus] if asked.versus is not None else [])]
    chosen = asked.placement or placement or DEFAULTS.placement
    for name in policies:
        load_settings(None, {}, {"policy": name, "placement": chosen})
    return policies, chosen
