"""Classes of service: how urgent calls are. Ours."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

STANDARD = "standard"

# first: before all other classes, of every tenant. share: by weight among its tenant's classes.
# spare: once nothing of other classes fits, of any tenant.
Goes = Literal["first", "share", "spare"]
LEVELS: Mapping[Goes, int] = MappingProxyType({"first": -1, "share": 0, "spare": 1})


class ServiceClass(msgspec.Struct, frozen=True):
    goes: Goes = "share"
    weight: float = 1.0
    max_wait_us: int | None = None  # in the queue; None: as for all
    deadline_us: int | None = None  # from a call's arrival, if it names none itself


CLASSES: Mapping[str, ServiceClass] = MappingProxyType(
    {
        "interactive": ServiceClass(weight=4.0),
        STANDARD: ServiceClass(),
        "batch": ServiceClass(goes="spare", max_wait_us=86_400_000_000),
    }
)
