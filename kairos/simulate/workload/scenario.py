"""Scenario files: which applications come, when, to which instances, and what happens to these.

The format, key by key, stands in traces/README.md; examples lie in traces/scenarios.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from kairos.core import InvalidFile, SetupError
from kairos.host import read_toml
from kairos.simulate.workload.application import BUILT_IN, generate, load_application
from kairos.simulate.workload.arrival_process import arrivals_within, draw_arrivals, time_scale
from kairos.simulate.workload.azure_trace import from_trace
from kairos.simulate.workload.submissions import draw_submissions as submissions_at
from kairos.simulate.workload.submissions import in_order, scaled
from kairos.simulate.workload.workflow_file import Name
from kairos.simulate.workload.workflows import Submission, Workflow, load_workflows

MOST_INSTANCES = 1000
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
What = Literal["join", "leave", "fail", "recover", "slow"]
Source = Callable[[int], Sequence[Workflow]]  # so many workflows, or those of a file

# What may happen to an instance that is absent, present or down, and what it is then.
_THEN = {
    ("absent", "join"): "present",
    ("present", "leave"): "absent",
    ("present", "fail"): "down",
    ("present", "slow"): "present",
    ("down", "recover"): "present",
    ("down", "leave"): "absent",
}


class Arriving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arrivals of workflows: by a process, or as in an Azure trace."""

    rate_per_s: Positive  # of workflows, in the long run
    process: str = "azure-conv"  # azure-code, poisson, gamma:CV
    trace: str | None = None  # a file to take them from instead


class App(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An application, and its part of all workflows."""

    app: Name  # a built-in one, or a file: a generative model (.toml), workflows (.jsonl, .gz)
    weight: Positive = 1.0


class Instances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of equal instances. They are numbered from 0 through all of these tables."""

    profile: Name  # by name, or a file (.toml)
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_INSTANCES)] = 1
    kv_tokens: Limit | None = None  # instead of the profile's
    max_num_seqs: Limit | None = None


class Happening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to an instance. One whose first event is to join is not there before.

    `leave`: it takes nothing more, and ends what it has; `fail`: what runs there is lost.
    """

    at_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    what: What
    instance: Annotated[int, msgspec.Meta(ge=0)]
    factor: Positive | None = None  # slow: steps take so many times as long as the profile says


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to simulate. Whether policy, placement and profiles exist is for who runs it to say."""

    arrivals: Arriving
    apps: Annotated[tuple[App, ...], msgspec.Meta(min_length=1)]
    instances: Annotated[tuple[Instances, ...], msgspec.Meta(min_length=1)]
    events: tuple[Happening, ...] = ()  # in order of time
    workflows: Annotated[int, msgspec.Meta(ge=1)] | None = None  # or:
    duration_s: Positive | None = None  # in which workflows arrive
    seed: int = 1
    policy: str = "kairos"
    placement: str | None = None
    max_context_tokens: Annotated[int, msgspec.Meta(ge=2)] | None = None  # see `scaled`


def read(path: Path) -> Scenario:
    """Read a scenario; its files are relative to it.

    Raises:
        InvalidFile: It is malformed; for an unknown key the message lists the known ones.
    """
    scenario = read_toml(path, Scenario)
    if problem := next(_problems(scenario), None):
        raise InvalidFile(path, problem)
    trace = scenario.arrivals.trace
    return replace(
        scenario,
        arrivals=replace(scenario.arrivals, trace=trace and str(path.parent / trace)),
        apps=tuple(replace(each, app=_beside(path, each.app)) for each in scenario.apps),
        instances=tuple(
            replace(each, profile=_beside(path, each.profile)) for each in scenario.instances
        ),
        events=tuple(sorted(scenario.events, key=lambda event: event.at_s)),
    )


def submissions(scenario: Scenario, seed: int | None = None) -> list[Submission]:
    """Return the requested workflows in order of time. `seed`: the scenario's by default.

    Workflows of a file are shuffled by the seed, and repeated when they run out.

    Raises:
        SetupError: An application or a file of the scenario is invalid.
    """
    seed = scenario.seed if seed is None else seed
    sources = [
        (partial(_workflows, scenario, each.app, seed), each.weight) for each in scenario.apps
    ]
    return mixed(sources, _instants(scenario, seed), seed)


def mixed(
    sources: Sequence[tuple[Source, float]], at_us: Sequence[int], seed: int
) -> list[Submission]:
    """Return at each instant a workflow from one of the sources, chosen by these weights."""
    random = Random(f"{seed}/apps")  # noqa: S311  (a workload, no secret)
    weights = [weight for _, weight in sources]
    chosen = random.choices(range(len(weights)), weights, k=len(at_us))
    planned: list[Submission] = []
    for position, (workflows, _) in enumerate(sources):
        its_at_us = [at for at, source in zip(at_us, chosen, strict=True) if source == position]
        planned += submissions_at(workflows(len(its_at_us)), its_at_us, seed)
    return in_order(planned)


def _instants(scenario: Scenario, seed: int) -> list[int]:
    process, rate = scenario.arrivals.process, scenario.arrivals.rate_per_s
    if scenario.duration_s is not None:
        return arrivals_within(process, scenario.duration_s, rate, seed)
    assert scenario.workflows is not None
    if scenario.arrivals.trace is not None:
        return from_trace(Path(scenario.arrivals.trace), scenario.workflows, rate, seed)
    return draw_arrivals(process, scenario.workflows, rate, seed)


def _workflows(scenario: Scenario, app: str, seed: int, count: int) -> list[Workflow]:
    if app in BUILT_IN or app.endswith(".toml"):
        workflows = generate(load_application(app), count, seed)
    else:
        workflows = load_workflows(Path(app))
    most = scenario.max_context_tokens
    return workflows if most is None else scaled(workflows, most)


def _beside(path: Path, name: str) -> str:
    is_file = "/" in name or name.endswith((".toml", ".jsonl", ".gz"))
    return str(path.parent / name) if is_file else name


def _problems(scenario: Scenario) -> Iterator[str]:
    if (scenario.workflows is None) == (scenario.duration_s is None):
        yield "give either workflows, their number, or duration_s"
    if scenario.arrivals.trace is not None and scenario.workflows is None:
        yield "arrivals from a trace need workflows, their number, not duration_s"
    try:
        time_scale(scenario.arrivals.process, scenario.arrivals.rate_per_s)
    except SetupError as error:
        yield f"arrivals: {error}"
    names = [each.app for each in scenario.apps]
    for name in names:
        if name not in BUILT_IN and not name.endswith((".toml", ".jsonl", ".gz")):
            known = ", ".join(BUILT_IN)
            yield f"apps: '{name}' is none of {known}, nor a .toml, .jsonl or .jsonl.gz file"
        if names.count(name) > 1:
            yield f"apps: '{name}' is listed twice; give it the sum of the weights"
    count = sum(each.count for each in scenario.instances)
    if count > MOST_INSTANCES:
        yield f"{count} instances are more than {MOST_INSTANCES}, which is the limit"
    yield from _problems_of_events(scenario.events, count)


def _problems_of_events(events: tuple[Happening, ...], count: int) -> Iterator[str]:
    states: dict[int, str] = {}
    for event in sorted(events, key=lambda event: event.at_s):
        where = f"events: {event.what} of instance {event.instance} at {event.at_s:g} s"
        if event.instance >= count:
            yield f"{where}: there are instances 0 to {count - 1}"
        if (event.what == "slow") != (event.factor is not None):
            yield f"{where}: factor is needed by slow, and by nothing else"
        first = "absent" if event.what == "join" else "present"
        state = states.get(event.instance, first)
        if (state, event.what) not in _THEN:
            may = ", ".join(what for before, what in _THEN if before == state)
            yield f"{where}: it is {state} then; what can happen is: {may}"
            return
        states[event.instance] = _THEN[state, event.what]
