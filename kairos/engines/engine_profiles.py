"""Profiles of engines: built-in ones by name, others by path.

A profile is a TOML file with the fields of `EngineProfile`, and the fields of `StepCost` in
`[step]`. It names the source of its figures.
"""

import re
from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from kairos.core import EngineProfile, InvalidFile, SetupError, StepCost
from kairos.host import read_toml

_SUFFIX = ".toml"
_SPECIAL = re.compile(r'[\x00-\x09\x0b-\x1f\x7f"\\]')  # in TOML's texts; lines may end
_AT_LEAST_ONE = ("kv_tokens", "block_size", "max_num_seqs", "max_num_batched_tokens")
_MOST_US = 1e9  # of one thing that takes time: more is a slip, and would be simulated for ever


def profile_names() -> list[str]:
    """Return the names of the profiles that come with Kairos."""
    return sorted(file.name.removesuffix(_SUFFIX) for file in _shipped())


def load_profile(name_or_path: str) -> EngineProfile:
    """Return the profile with this name, or in this file: a path ends in `.toml` or has a slash.

    Raises:
        SetupError: It does not exist; the message lists the names.
        InvalidFile: The file is not a profile; the message says which field is wrong.
    """
    if name_or_path.endswith(_SUFFIX) or "/" in name_or_path:
        return _read(Path(name_or_path))
    for file in _shipped():
        if file.name == name_or_path + _SUFFIX:
            with as_file(file) as path:
                return _read(path)
    raise SetupError(
        f"there is no profile '{name_or_path}': name one of {', '.join(profile_names())}, or the "
        "path of a .toml file, such as one that `kairos calibrate` wrote"
    )


def profile_to_toml(profile: EngineProfile) -> str:
    """The content of a file that `profile` reads back."""
    fields = msgspec.structs.asdict(profile)
    step: StepCost = fields.pop("step")
    lines = [f"{key} = {_literal(value)}" for key, value in fields.items()]
    costs = [f"{key} = {_literal(value)}" for key, value in msgspec.structs.asdict(step).items()]
    return "\n".join([*lines, "", "[step]", *costs, ""])


def _literal(value: str | bool | float) -> str:
    if isinstance(value, str):
        text = _SPECIAL.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
        return f'"""\n{text}"""' if "\n" in text else f'"{text}"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shipped() -> Iterator[Traversable]:
    directory = files("kairos.engines") / "profiles"
    return (file for file in directory.iterdir() if file.name.endswith(_SUFFIX))


def _read(path: Path) -> EngineProfile:
    found = read_toml(path, EngineProfile)
    for name in _AT_LEAST_ONE:
        if (value := getattr(found, name)) < 1:
            raise InvalidFile(path, f"{name} is {value}: give 1 or more")
    if found.kv_tokens < found.block_size:
        raise InvalidFile(path, f"kv_tokens ({found.kv_tokens}) is less than one block")
    if found.max_model_len < 2:
        raise InvalidFile(path, f"max_model_len is {found.max_model_len}: give 2 or more")
    costs = {"call_us": found.call_us, **msgspec.structs.asdict(found.step)}
    for name, value in costs.items():
        if not 0 <= value <= _MOST_US:
            raise InvalidFile(path, f"{name} is {value}: give a time from 0 to {_MOST_US:g}, in µs")
    return found
