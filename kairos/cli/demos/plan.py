"""Tasks of a demo, in their order."""

import importlib
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from random import Random
from typing import Any

import msgspec

from kairos.agents import Application
from kairos.cli.demo import Demo
from kairos.core import SetupError

# The share of each application: the more calls its workflows make, the fewer of them.
WEIGHTS = {"qa": 3, "rg": 2, "cg": 1}


class DemoSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A user task, and when it is submitted, from the start of the demo."""

    at_us: int
    app: Application
    question: str
    value: dict[str, Any]


def plan_submissions(options: Demo, at_us: Sequence[int]) -> list[DemoSubmission]:
    """Return tasks of the applications by weight, shuffled, and their inputs in the seed's order.

    Raises SetupError: An application is unknown, or this is not a checkout.
    """
    apps = list(dict.fromkeys(options.apps.split(",")))
    for app in apps:
        if app not in WEIGHTS:
            raise SetupError(f"there is no application '{app}'; choose from: {', '.join(WEIGHTS)}")
    random = Random(options.seed)  # noqa: S311 (a workload, not a secret)
    mix = [app for app in apps for _ in range(WEIGHTS[app])]
    order = list(islice(cycle(mix), len(at_us)))
    random.shuffle(order)
    inputs = [name for name in options.inputs.split(",") if name]
    tasks = {app: _tasks(app, inputs, random) for app in apps}
    return [
        msgspec.structs.replace(next(tasks[app]), at_us=at)
        for app, at in zip(order, at_us, strict=True)
    ]


def _tasks(name: str, chosen: Sequence[str], random: Random) -> Iterator[DemoSubmission]:
    """Endless tasks of an application, in equal parts of each of the chosen data sets for it."""
    try:
        app = importlib.import_module(f"agents.{name}").app
        inputs = importlib.import_module("agents.inputs")
    except ModuleNotFoundError as error:
        raise SetupError(
            f"the demo's applications are not here ({error}): run it from a checkout of Kairos, "
            "after `make install`"
        ) from error
    if unknown := [source for source in chosen if source not in inputs.SOURCES]:
        known = ", ".join(inputs.SOURCES)
        raise SetupError(f"no inputs are called '{unknown[0]}'; choose from: {known}")
    sources = [source for source in chosen if inputs.SOURCES[source].app == name] or ["builtin"]
    shuffled = [cycle(_shuffled(inputs.load(name, source), random)) for source in sources]
    return (_submission(app, next(source)) for source in cycle(shuffled))


def _shuffled(inputs: list[Any], random: Random) -> list[Any]:
    random.shuffle(inputs)
    return inputs


def _submission(app: Application, task: Any) -> DemoSubmission:
    # What a user would send: the right answer is not for the agents.
    value = {field: getattr(task, field) for field in ("text", "tests", "entry_point")}
    given = {field: text for field, text in value.items() if text is not None}
    return DemoSubmission(at_us=0, app=app, question=task.text, value=given)
