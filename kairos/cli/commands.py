"""The commands of `kairos`, each imported when it is run, and their options' values.

typer has pydantic convert every value, which costs half as much CPU time as all else that a command
imports. Text, numbers and paths that are plainly valid are converted here; everything else is left
to typer, with its messages. Not in the paper.
"""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

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


# By name: the heading in `kairos --help`, the module in `kairos.cli`, and what to take from it: a
# function, or a group's typer.
COMMANDS = {
    "serve": (_SERVE, "serve", "serve"),
    "balance": (_SERVE, "serve", "balance"),
    "orchestrate": (_SERVE, "serve", "orchestrate"),
    "demo": (_SERVE, "demo", "demo"),
    "standin": (_SERVE, "standin", "standin"),
    "run": (_FLOWS, "run", "run"),
    "plan": (_FLOWS, "plan", "plan"),
    "profile": (_FLOWS, "profile", "profile"),
    "health": (_LOOK, "top", "health"),
    "top": (_LOOK, "top", "top"),
    "explain": (_LOOK, "look", "explain"),
    "export": (_LOOK, "look", "export"),
    "usage": (_LOOK, "look", "usage"),
    "happened": (_LOOK, "happened", "happened"),
    "gained": (_LOOK, "gained", "gained"),
    "simulate": (_PLAN, "simulate", "simulate"),
    "replay": (_PLAN, "replay", "replay"),
    "calibrate": (_PLAN, "calibrate", "calibrate"),
    "plan-hardware": (_PLAN, "plan_hardware", "plan_hardware"),
    "plan-autoscale": (_PLAN, "plan_autoscale", "plan_autoscale"),
    "agents": (_CARE, "agents", "app"),
    "bus": (_CARE, "bus", "app"),
    "keys": (_CARE, "keys", "app"),
    "runs": (_FLOWS, "runs", "app"),
    "traces": (_CARE, "traces", "app"),
}


class Commands(TyperGroup):
    """Group of all commands. A command is imported when it is run, and all are for `--help`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names: Any = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_params(self, ctx: Any) -> Any:
        """Return the options of the group itself, and the options that typer adds."""
        found = super().get_params(ctx)
        for each in found:
            _take_plain_value(each)
        return found

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        return load(cmd_name) if cmd_name in COMMANDS else None

    def whole(self) -> dict[str, Any]:
        return {name: load(name) for name in COMMANDS}


@cache
def load(name: str) -> Any:
    panel, module, attribute = COMMANDS[name]
    found = getattr(import_module(f"kairos.cli.{module}"), attribute)
    around = typer.Typer(rich_markup_mode="rich", add_completion=False)
    around.callback()(lambda: None)  # so that a single command is a group's, too
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name, no_args_is_help=True, rich_help_panel=panel)
    else:
        around.command(name, rich_help_panel=panel)(found)
    group: Any = typer.main.get_command(around)
    take_plain_values(group)
    return group.commands[name]


class _PlainValue:
    """Converts the values of one option; an object as typer's own parameters have."""

    def __init__(self, parameter: Any, full: Callable[[], Any]) -> None:
        """Create it. `full` creates typer's own parameter."""
        self._annotation = parameter.type_descriptor.annotation
        self._full = full

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
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
        plain = _PlainValue(parameter, full)
        parameter.get_runtime_param = lambda: plain


def _is_restricted(info: Any) -> bool:
    allows_both = info.file_okay and info.dir_okay and info.readable
    return not allows_both or any(
        getattr(info, name) not in (None, False) for name in _RESTRICTIONS
    )
