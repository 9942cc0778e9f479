"""Configuration of `kairos plan-autoscale` in TOML: bounds of the pool, and starting of engines."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kairos.capacity.autoscaling import ScalingRules
from kairos.capacity.command_engines import CommandEngines, EngineCommands
from kairos.capacity.kubernetes_scale import KubernetesEngines, StatefulSetEngines
from kairos.core import SetupError
from kairos.host import read_toml


class ScalingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File that `kairos plan-autoscale` reads."""

    pool: ScalingRules = ScalingRules()
    every_s: float = 15.0  # between two observations
    ready_s: float = 900.0  # an engine that does not answer by then has failed
    stop_s: float = 600.0  # after this, an engine that cannot be stopped is left to the operator
    engine: dict[
        str, Any
    ] = {}  # what the pool is told of each engine: max_num_seqs, kv_tokens, ...
    commands: EngineCommands | None = None
    kubernetes: KubernetesEngines | None = None


class ScaledEngines(Protocol):
    """Engines by their URLs."""

    def adopted(self, known: Iterable[str]) -> list[str]:
        """Return the known engines that can be stopped here, in the order of their start."""

    def start(self, known: Iterable[str]) -> str:
        """Start an engine; return its URL. Raises SetupError: it cannot be started."""

    def failed(self, url: str) -> str | None:
        """Return why a started engine will not serve; None: it may."""

    def stop(self, url: str) -> None:
        """Stop an engine. Raises SetupError: it cannot be stopped now."""


def read_scaling_file(path: Path) -> ScalingFile:
    """Read the file. Raises InvalidFile, SetupError: it is invalid."""
    found = read_toml(path, ScalingFile)
    found.pool.check()
    if found.commands is not None and found.kubernetes is not None:
        raise SetupError(f"{path}: commands or kubernetes: one of both starts the engines")
    for name, value in (
        ("every_s", found.every_s),
        ("ready_s", found.ready_s),
        ("stop_s", found.stop_s),
    ):
        if not 1 <= value <= 86_400:
            raise SetupError(f"{path}: {name} must be from 1 to 86400; it is {value:g}")
    if found.engine.get("phase") == "prefill":
        raise SetupError(
            f"{path}: engine: of pairs the instances that generate answers are scaled; "
            'give phase = "decode" or "both", or leave it out'
        )
    if found.commands is not None:
        found.commands.check()
    return found


def engines_of(file: ScalingFile) -> ScaledEngines | None:
    """Return the engines; None: the file configures none. Raises SetupError: they are invalid."""
    if file.commands is not None:
        return CommandEngines(file.commands)
    return None if file.kubernetes is None else StatefulSetEngines(file.kubernetes)
