"""Values of options that need no conversion by pydantic.

typer has pydantic convert every value, which costs half as much CPU time as all else that a command
imports. Text, numbers and paths that are plainly valid are converted here; everything else is left
to typer, with its messages. Not in the paper.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_RESTRICTIONS = (
    *("parser", "min", "max", "clamp", "formats"),
    *("exists", "writable", "resolve_path", "allow_dash", "path_type"),
)


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
            take_plain_value(each)
        return found

    command.get_params = get_params


def take_plain_value(parameter: Any) -> None:
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
