"""What a TOML file tells `kairos plan-autoscale`: bounds of the pool, and how engines start."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kairos.capacity.autoscaling import ScalingRules
from kairos.capacity.command_engines import CommandEngines, EngineCommands
from kairos.capacity.kubernetes_scale import KubernetesEngines, StatefulSetEngines
from kairos.core.errors import SetupError
from kairos.host.toml_file import read_toml


class ScalingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `kairos plan-autoscale` reads."""

    pool: ScalingRules = ScalingRules()
    every_s: float = 15.0  # between two looks
    ready_s: float = 900.0  # an engine that does not answer after so long is given up
    stop_s: float = 600.0  # one that cannot be stopped for so long is left to the operator
    engine: dict[
        str, Any
    ] = {}  # what the pool is told of each engine: max_num_seqs, kv_tokens, ...
    commands: EngineCommands | None = None
    kubernetes: KubernetesEngines | None = None


class ScaledEngines(Protocol):
    """Engines by their URLs."""

    def adopted(self, known: Iterable[str]) -> list[str]:
        """Of URLs that the pool knows, those that can be stopped here, in the order in which they
        were started."""

    def start(self, known: Iterable[str]) -> str:
        """The URL of one more. Raises SetupError: it cannot be started."""

    def failed(self, url: str) -> str | None:
        """Why an engine that was started will not serve; None: it may."""

    def stop(self, url: str) -> None:
        """Raises SetupError: it cannot be stopped now."""


def scaling_file(path: Path) -> ScalingFile:
    """Raises InvalidFile, SetupError: it says something that cannot be."""
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
    """None: the file names no way to start engines. Raises SetupError: it is none."""
    if file.commands is not None:
        return CommandEngines(file.commands)
    return None if file.kubernetes is None else StatefulSetEngines(file.kubernetes)
