"""Entitlements of callers: weights of tenants, classes of service, and quotas with what is left."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec


class TenantWeight(msgspec.Struct, frozen=True, omit_defaults=True):
    weight: float = 1.0
    apps: Mapping[str, float] = {}  # weights by app, 1 if not named; empty: apps are not weighed


STANDARD_CLASS = "standard"

# first: before all other classes of all tenants. share: by weight among its tenant's classes.
# spare: best-effort, once nothing of the other classes of any tenant fits.
Goes = Literal["first", "share", "spare"]


class ServiceClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """Class of service: how urgent calls are."""

    goes: Goes = "share"
    weight: float = 1.0
    max_wait_us: int | None = None  # maximum wait in the queue; None: the default
    deadline_us: int | None = None  # from a call's arrival, if it names none itself


SERVICE_CLASSES: Mapping[str, ServiceClass] = MappingProxyType(
    {
        "interactive": ServiceClass(weight=4.0),
        STANDARD_CLASS: ServiceClass(),
        "batch": ServiceClass(goes="spare", max_wait_us=86_400_000_000),
    }
)


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of a tenant, an app or a key. None: unlimited."""

    tenant: str
    app: str | None = None  # None: the quota covers all calls of the tenant
    key: str | None = None  # name of an API key; the quota covers its calls instead of an app's
    calls_per_minute: int | None = None
    tokens_per_minute: int | None = None  # tokens of prompts and answers
    tokens_per_day: int | None = None
    calls_at_once: int | None = None  # calls that wait or run
    # Open workflows; a workflow ends after `workflow_idle_s` without a call. Further calls of open
    # workflows are admitted.
    workflows_at_once: int | None = None
    # Maximum share of the pool's KV memory for running calls; only for a whole tenant. Calls beyond
    # it wait instead of being refused.
    kv_share: float | None = None

    @property
    def whose(self) -> str:
        app = "" if self.app is None else f", app '{self.app}'"
        key = "" if self.key is None else f", key '{self.key}'"
        return f"tenant '{self.tenant}'{app}{key}"


class Entitlements(msgspec.Struct, frozen=True):
    """All entitlements. A tenant that is not named has a weight of 1, and no quota."""

    weights: Mapping[str, TenantWeight] | None = {}  # None: tenants have no shares
    classes: Mapping[str, ServiceClass] = msgspec.field(
        default_factory=lambda: dict(SERVICE_CLASSES)
    )
    quotas: tuple[Quota, ...] = ()


ALIKE = Entitlements()  # all tenants are equal


class RateLimit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    limit: int  # of calls or tokens, per minute or day
    remaining: int  # what may still be used at once
    reset_us: int  # time until the full limit is available again, without further use


class RateLimits(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The tightest remaining quota of each kind. None: unlimited."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None


def scarcer(one: RateLimit | None, other: RateLimit | None) -> RateLimit | None:
    """Return the quota with less left; if equal, the one that takes longer to reset."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda each: (each.remaining, -each.reset_us))
