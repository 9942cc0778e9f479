"""What callers are entitled to: weights of tenants, classes of service, quotas."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec


class TenantWeight(msgspec.Struct, frozen=True, omit_defaults=True):
    weight: float = 1.0
    apps: Mapping[str, float] = {}  # of one that is not named: 1; none at all: apps do not count


STANDARD = "standard"

# first: before all other classes, of every tenant. share: by weight among its tenant's classes.
# spare: once nothing of other classes fits, of any tenant.
Goes = Literal["first", "share", "spare"]


class ServiceClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """How urgent calls are."""

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


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: as much as it likes."""

    tenant: str
    app: str | None = None  # None: all that the tenant's calls use together
    key: str | None = None  # by its name: what calls with it use, in place of an app
    calls_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    tokens_per_day: int | None = None
    calls_at_once: int | None = None  # that wait or run
    # Workflows that have begun and not ended; after `workflow_idle_s` without a call one has. Their
    # further calls are let in.
    workflows_at_once: int | None = None
    # Of the pool's KV memory, that its running calls hold at most; of a whole tenant alone. Calls
    # beyond it wait, and are not refused.
    kv_share: float | None = None

    @property
    def whose(self) -> str:
        app = "" if self.app is None else f", app '{self.app}'"
        key = "" if self.key is None else f", key '{self.key}'"
        return f"tenant '{self.tenant}'{app}{key}"


class Entitlements(msgspec.Struct, frozen=True):
    """All of it. Whoever is not named has a weight of 1, and no quota."""

    weights: Mapping[str, TenantWeight] | None = {}  # None: tenants have no shares
    classes: Mapping[str, ServiceClass] = msgspec.field(default_factory=lambda: dict(CLASSES))
    quotas: tuple[Quota, ...] = ()


ALIKE = Entitlements()  # everybody
