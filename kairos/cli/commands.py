"""The commands of `kairos`, each imported when it is resolved, and their options' values.

`kairos --help` lists them by the lines below; a test compares these with the commands' own.

typer has pydantic convert every value, which costs half as much CPU time as all else that a command
imports. Text, numbers and paths that are plainly valid are converted here; everything else is left
to typer, with its messages. Not in the paper.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

_SERVE, _LOOK, _FLOWS, _PLAN, _CARE = (
    "Serve",
    "See what goes on, and what happened",
    "Declared workflows over tables",
    "Predict and plan",
    "Agents, keys, data",
)

_RESTRICTIONS = (
    *("parser", "min", "max", "clamp", "formats"),
    *("exists", "writable", "resolve_path", "allow_dash", "path_type"),
)


class CommandPlace(NamedTuple):
    """Where a command is defined, and how it is listed."""

    panel: str
    module: str  # of kairos.cli
    name: str  # in the module: a function, or a group's typer
    help: str  # its first line


COMMANDS = {
    "serve": CommandPlace(
        *(_SERVE, "serve", "serve"), "Serve OpenAI's API in front of one or more engines."
    ),
    "balance": CommandPlace(
        *(_SERVE, "serve", "balance"),
        "Decide for a pool of engines over Kafka, or stand by, without serving clients over HTTP.",
    ),
    "orchestrate": CommandPlace(
        *(_SERVE, "serve", "orchestrate"),
        "Follow workflows over Kafka, learn from ended ones, and publish profiles to balancers.",
    ),
    "demo": CommandPlace(
        *(_SERVE, "demo", "demo"),
        "Run three multi-agent applications on real engines behind Kairos.",
    ),
    "standin": CommandPlace(
        *(_SERVE, "standin", "standin"),
        "Serve a made-up model: vLLM's interface with scripted text and modelled time.",
    ),
    "run": CommandPlace(
        *(_FLOWS, "run", "run"),
        "Run a declared workflow over a table: one row in, one row out, each exactly once.",
    ),
    "plan": CommandPlace(
        *(_FLOWS, "plan", "plan"),
        "Explain what would be run: what is left out, merged and fetched, and how many calls are "
        "left.",
    ),
    "profile": CommandPlace(
        *(_FLOWS, "profile", "profile"),
        "Learn from a few rows how long prompts and answers are, and how often each operator runs.",
    ),
    "health": CommandPlace(
        *(_LOOK, "health", "health"),
        "Ask a running Kairos whether it is well; the exit status says so, to probes.",
    ),
    "top": CommandPlace(
        *(_LOOK, "top", "top"),
        "Show the present state: instances, and the queue in order.",
    ),
    "explain": CommandPlace(
        *(_LOOK, "look", "explain"),
        "Show a workflow's calls: what led to each, and why it went when and where it did.",
    ),
    "export": CommandPlace(
        *(_LOOK, "look", "export"),
        "Turn the log of a Kairos into a workflow file, for replay and simulation.",
    ),
    "usage": CommandPlace(
        *(_LOOK, "look", "usage"),
        "Show who used how much, from a log: calls, tokens, time in the queue, service, cost.",
    ),
    "happened": CommandPlace(
        *(_LOOK, "happened", "happened"),
        "Show what happened at a past time, from the log of a kairos serve.",
    ),
    "gained": CommandPlace(
        *(_LOOK, "gained", "gained"),
        "Compare the policy with others, by the log of a kairos serve.",
    ),
    "simulate": CommandPlace(
        *(_PLAN, "simulate", "simulate"),
        "See what a policy would have done: recorded workflows on a pool of simulated vLLM "
        "engines.",
    ),
    "replay": CommandPlace(
        *(_PLAN, "replay", "replay"),
        "Drive a running gateway with recorded workflows: real HTTP calls of the recorded lengths.",
    ),
    "calibrate": CommandPlace(
        *(_PLAN, "calibrate", "calibrate"),
        "Measure what an engine's steps cost, and write a profile for `kairos simulate`.",
    ),
    "plan-hardware": CommandPlace(
        *(_PLAN, "plan_hardware", "plan_hardware"),
        "Say which hardware workflows should have: what, how many, and what runs where.",
    ),
    "plan-autoscale": CommandPlace(
        *(_PLAN, "plan_autoscale", "plan_autoscale"),
        "Say how many engines a pool should have for its future work; with --drive, keep it so.",
    ),
    "agents": CommandPlace(
        *(_CARE, "agents", "app"),
        "Run multi-agent applications as processes of their own, over Kafka, and submit tasks.",
    ),
    "bus": CommandPlace(
        *(_CARE, "bus", "app"),
        "Topics of Kafka: find records that make no sense, and pass over one.",
    ),
    "keys": CommandPlace(
        *(_CARE, "keys", "app"),
        "API keys in a file of their own, which the setting keys_path names.",
    ),
    "runs": CommandPlace(
        *(_FLOWS, "runs", "app"),
        "Runs of declared workflows: list, show, resume and cancel them.",
    ),
    "traces": CommandPlace(
        *(_CARE, "traces", "app"),
        "Real arrivals and inputs: what there is, and fetching it.",
    ),
}


class Commands(TyperGroup):
    """Group of all commands: lines of `COMMANDS` without options, until one is resolved."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: _listed(name, place) for name, place in COMMANDS.items()}

    def get_params(self, ctx: Any) -> Any:
        """Return the options of the group itself, and the options that typer adds."""
        found = super().get_params(ctx)
        for each in found:
            _take_plain_value(each)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the whole command, and the rest of the arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if command is None else load(str(command.name)), rest

    def whole(self) -> dict[str, Any]:
        """Import all commands, and return them by name."""
        return {name: load(name) for name in self.commands}


def load(name: str) -> Any:
    """Import a command or group of that name, and return it."""
    place = COMMANDS[name]
    found = getattr(import_module(f"kairos.cli.{place.module}"), place.name)
    around = typer.Typer(rich_markup_mode="rich", add_completion=False)
    around.callback()(_nothing)
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name, no_args_is_help=True, rich_help_panel=place.panel)
    else:
        around.command(name, rich_help_panel=place.panel)(found)
    group: Any = typer.main.get_command(around)
    take_plain_values(group)
    return group.commands[name]


def _listed(name: str, place: CommandPlace) -> TyperCommand:
    return TyperCommand(name, help=place.help, rich_help_panel=place.panel)


def _nothing() -> None:
    """The callback of a group that has no options of its own."""


class _PlainValue:
    """Converts the values of one option; an object as typer's own parameters have."""

    def __init__(self, parameter: Any, full: Callable[[], Any]) -> None:
        """Create it. `full` creates typer's own parameter."""
        self._annotation = parameter.type_descriptor.annotation
        self._full = full

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return the value as the command takes it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind = self._annotation
        if kind == list[str] and type(value) in (list, tuple) and {*map(type, value)} <= {str}:
            return list(value)
        if type(value) is kind or (get_origin(kind) is Literal and value in get_args(kind)):
            return value
        if type(value) is str:
            if kind is int and value.isascii() and value.isdigit():
                return int(value)
            if kind is Path and (not Path(value).exists() or os.access(value, os.R_OK)):
                return Path(value)
        return self._full().coerce(value, param=param, ctx=ctx)


def take_plain_values(command: Any) -> None:
    """Have the command, or all commands of the group, take them."""
    for each in getattr(command, "commands", {}).values():
        take_plain_values(each)
    parameters = command.get_params  # with `--help`, which is made when it is first asked for

    def get_params(context: Any) -> Any:
        found = parameters(context)
        for each in found:
            _take_plain_value(each)
        return found

    command.get_params = get_params


def _take_plain_value(parameter: Any) -> None:
    """Let a parameter be converted without pydantic, if possible. Repeated calls do nothing."""
    full = getattr(parameter, "get_runtime_param", None)  # None: not of this version of typer
    if full is None or "get_runtime_param" in vars(parameter):
        return
    if not _is_restricted(parameter.type_descriptor.parameter_info):
        parameter.get_runtime_param = _always(_PlainValue(parameter, full))


def _is_restricted(info: Any) -> bool:
    allows_both = info.file_okay and info.dir_okay and info.readable
    return not allows_both or any(
        getattr(info, name) not in (None, False) for name in _RESTRICTIONS
    )


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value
