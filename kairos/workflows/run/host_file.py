"""The file of a host whose devices serve one model at a time: `kairos plan --host`, `run --host`.

devices = 2

[models.small]
engine = "llama"                   # or "vllm"
options = ["--context", "4096"]    # of `python -m kairos.engines.llama`
profile = "cpu-tiny"               # for plans: how quick it is, as of kairos simulate
load_s = 4.0                       # until it serves; measured by a run

[cost]                             # factors of plans; without: as measured (kairos profile), or 1
reuse = 1.0                        # of contexts that prompts of a row share, the part that is found
sharing = 1.0                      # devices that share an operator: as quick as k to this power
"""

from pathlib import Path
from typing import Literal

import msgspec

from kairos.core import InvalidFile
from kairos.host import read_toml
from kairos.workflows.compile.device_work import MOST_DEVICES, LoadTime
from kairos.workflows.compile.flow_profile import UNKNOWN_FACTORS, CostFactors

MOST_MODELS = 64
_MOST_LOAD_S, _MOST_OPTIONS = 86_400.0, 100
_S = 1_000_000


class HostedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model of a host. `load_s`: seconds from the start of its engine until it serves."""

    engine: Literal["llama", "vllm"] = "vllm"
    options: tuple[str, ...] = ()
    profile: str = "a40-llama3-8b"
    load_s: float = 60.0

    @property
    def load(self) -> LoadTime:
        return LoadTime(load_us=self.load_s * _S)


class HostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host file. `models`: by their names in flows."""

    devices: int
    models: dict[str, HostedModel]
    cost: CostFactors = UNKNOWN_FACTORS

    @property
    def loads(self) -> dict[str, LoadTime]:
        return {name: each.load for name, each in self.models.items()}


def read_host(path: Path) -> HostFile:
    """Read a host file. Raises InvalidFile: it is not valid; the message says why."""
    found = read_toml(path, HostFile)
    if not 1 <= found.devices <= MOST_DEVICES:
        raise InvalidFile(path, f"devices is {found.devices}: give 1 to {MOST_DEVICES}")
    if not 1 <= len(found.models) <= MOST_MODELS:
        raise InvalidFile(path, f"{len(found.models)} models: give 1 to {MOST_MODELS}")
    for factor, given in msgspec.structs.asdict(found.cost).items():
        if given is not None and not 0 <= given <= 1:
            raise InvalidFile(path, f"{factor} of [cost] is {given}: give 0 to 1")
    for name, each in found.models.items():
        if not 0 < each.load_s <= _MOST_LOAD_S:
            raise InvalidFile(path, f"load_s of {name} is {each.load_s}: give seconds above 0")
        if len(each.options) > _MOST_OPTIONS:
            raise InvalidFile(
                path, f"{len(each.options)} options of {name}: {_MOST_OPTIONS} at most"
            )
    return found
