"""Names and limits of the core for settings and `--help`, and names of users' own classes.

They are repeated here for modules that must not import the core itself, which imports numpy and
takes a tenth of a second. A test compares each with the core's own.
"""

import re
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, TypeVar

from kairos.core.errors import SetupError

POLICY_NAMES = ("fcfs", "fcfs-app", "kairos", "wasserstein-mds")
PLACEMENT_NAMES = ("kairos", "least-kv", "round-robin", "time-slot")
# Former built-in baselines, and the names that replace them.
MOVED = {
    "ayo": "experiments.baseline_policies:Ayo",
    "gittins": "experiments.baseline_policies:Gittins",
    "las": "experiments.baseline_policies:Las",
    "mean": "experiments.baseline_policies:Mean",
    "affinity": "experiments.baseline_placements:Affinity",
    "power-of-two": "experiments.baseline_placements:PowerOfTwo",
}
MAX_WAITING = 10_000  # requests in the queue
MAX_WAIT_S = 600  # maximum wait in the queue
SUSPICION_S = 10  # maximum wait of a call that may have killed an instance, to run alone
IDLE_S = 600  # silence after a workflow's last call at which it has ended

NAME_PATTERN = r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z"  # becomes part of a topic's name, so no dots
T = TypeVar("T")
_OF_A_USER = re.compile(r"\A[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z")


def check_name(what: str, name: str, known: Collection[str]) -> None:
    """Check that a policy or a placement is known, or can be imported as `package.module:Name`.

    Raises:
        SetupError: It is neither.
    """
    if name in known:
        return
    if _OF_A_USER.match(name):
        _imported(what, name)
        return
    names = ", ".join(sorted(known))
    if name in MOVED:
        raise SetupError(
            f"{what} '{name}' is a baseline of experiments now: in a checkout, "
            f"--{what} {MOVED[name]}; known: {names}"
        )
    raise SetupError(
        f"there is no {what} '{name}'; known: {names}; your own: --{what} package.module:Class"
    )


def named(what: str, name: str, known: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """Return the factory of a policy or a placement.

    Raises:
        SetupError: It is unknown and cannot be imported.
    """
    if name in known:
        return known[name]
    check_name(what, name, known)
    found: Callable[..., T] = _imported(what, name)
    return found


def _imported(what: str, name: str) -> Any:
    module, attribute = name.split(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        # A user's module may fail in any way.
        raise SetupError(f"--{what} {name}: {type(error).__name__}: {error}") from error
