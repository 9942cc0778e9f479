"""Settings of callers: keys, and their tenants' weights, service classes and quotas."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Literal

import msgspec

from kairos.core import (
    IDENTIFIER_PATTERN,
    NAME_PATTERN,
    SECOND,
    SERVICE_CLASSES,
    Entitlements,
    Goes,
    InvalidRequest,
    Quota,
    ServiceClass,
    SetupError,
    TenantWeight,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1_000.0
_MOST_CLASSES = 32
_LABEL_DIGITS = 8
_MOST_CHARACTERS = 128  # of a name that comes from elsewhere
_LIMITS = range(1, 1 << 53)  # of quotas
ENTITLEMENTS_BYTES = 512 << 10  # a message on the bus has twice that
_LONGEST_S = 365 * 86_400
# Limits of a quota that several pools split; `kv_share` is a part of each one's memory.
_SPLIT = (
    "calls_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "calls_at_once",
    "workflows_at_once",
)


Role = Literal["caller", "viewer", "admin"]


class KeySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's API key, as its SHA-256 digest, with its tenant and, optionally, its only app."""

    sha256: str  # printf %s "$KEY" | sha256sum
    tenant: str  # each sees its own workflows only
    app: str | None = None  # if the key is for one app only
    # Classes of service that its calls may ask for, by X-Kairos-Class; the first is that of calls
    # which name none. None at all: any, and `standard`.
    service_classes: tuple[str, ...] = ()
    # caller: may call. viewer: may see the operators' routes, and not call. admin: may do both, and
    # add and remove engines.
    role: Role = "caller"
    name: str | None = None  # by which `kairos keys` knows it; no two keys have the same
    expires: datetime | None = None  # from then on it is refused. A date: from 00:00 UTC on
    created: datetime | None = None  # when `kairos keys` made it

    @property
    def label(self) -> str:
        """The key's name; without one, the first digits of its digest."""
        return self.name or self.sha256[:_LABEL_DIGITS]

    @property
    def expires_at(self) -> int | None:
        """Expiry in microseconds since the Unix epoch; None: never."""
        return None if self.expires is None else _us(self.expires)


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weight of a tenant while others wait, too. Unlisted tenants have the weight 1."""

    name: str  # as keys have it
    weight: float = 1.0  # with 3 it gets three times as much as with 1
    # Weights of its apps among each other; of one that is not named: 1. None: apps do not count.
    apps: Mapping[str, float] = {}


class ServiceClassSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of service: a new one, or changes to `interactive`, `standard` or `batch`."""

    name: str
    # first: before all other classes, of every tenant. share: by weight among the classes of its
    # tenant. spare: once nothing of other classes fits, of any tenant.
    goes: Goes = "share"
    weight: float = 1.0  # where several of a tenant go by share
    max_wait_s: int | None = None  # longest wait in the queue; none: `max_wait_s`
    deadline_s: float | None = None  # after its arrival a call ends, if it names no deadline itself


class QuotaSettings(Quota, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a tenant, or of one of its apps or keys; limits left out do not apply.

    Calls beyond a limit are refused with 429, and `Retry-After` says when there is more.
    """


def check_quotas(
    quotas: tuple[QuotaSettings, ...], keys: tuple[KeySettings, ...], *, keys_change: bool
) -> None:
    """Check the quotas; `keys_change` as in `check_tenants`.

    Raises SetupError: A quota has no key, is given twice, or limits nothing.
    """
    known = {key.tenant for key in keys}
    named = {(key.tenant, key.name) for key in keys if key.name is not None}
    seen: set[str] = set()
    for quota in quotas:
        whose = f"the quota of {quota.whose}"
        if quota.tenant not in known and not keys_change:
            raise SetupError(f"{whose}: it has no key, so nobody calls for it")
        if quota.app is not None:
            _check_app(quota.app)
        if quota.key is not None:
            if quota.app is not None:
                raise SetupError(f"{whose}: it is of an app or of a key; give each a quota")
            if (quota.tenant, quota.key) not in named and not keys_change:
                raise SetupError(f"{whose}: the tenant has no key of that name")
        if whose in seen:
            raise SetupError(f"{whose} is given twice")
        seen.add(whose)
        limits = (getattr(quota, name) for name in Quota.__struct_fields__[3:])
        given = [limit for limit in limits if limit is not None]
        if not given:
            raise SetupError(f"{whose} limits nothing: give calls_per_minute, for example")
        _check_kv_share(quota, whose)
        if any(limit < 1 for limit in given if limit != quota.kv_share):
            raise SetupError(f"{whose}: a limit must be at least 1")


def _check_kv_share(quota: Quota, whose: str) -> None:
    if quota.kv_share is None:
        return
    if quota.app is not None or quota.key is not None:
        raise SetupError(f"{whose}: kv_share is of a whole tenant")
    if not 0 < quota.kv_share <= 1:
        raise SetupError(f"{whose}: kv_share must be above 0, and at most 1")


def classes_by_name(given: tuple[ServiceClassSettings, ...]) -> dict[str, ServiceClass]:
    return dict(SERVICE_CLASSES) | {
        each.name: ServiceClass(
            each.goes,
            each.weight,
            None if each.max_wait_s is None else each.max_wait_s * SECOND,
            None if each.deadline_s is None else int(each.deadline_s * SECOND),
        )
        for each in given
    }


def check_size(
    tenants: tuple[TenantSettings, ...],
    service_classes: tuple[ServiceClassSettings, ...],
    quotas: tuple[QuotaSettings, ...],
) -> None:
    """Check the size of the entitlements.

    Raises SetupError: As one fact of the log they would be too large for the bus.
    """
    size = len(msgspec.json.encode(tenant_entitlements(tenants, service_classes, quotas)))
    if size > ENTITLEMENTS_BYTES:
        raise SetupError(
            f"tenants, service classes and quotas are {size} bytes in the log, at most "
            f"{ENTITLEMENTS_BYTES} fit: leave out tenants of weight 1"
        )


def check_classes(given: tuple[ServiceClassSettings, ...], keys: tuple[KeySettings, ...]) -> None:
    """Check the classes of service.

    Raises SetupError: A class is invalid, or a key names an unknown one.
    """
    names = [each.name for each in given]
    for each in given:
        if not re.match(NAME_PATTERN, each.name):
            raise SetupError(f"'{each.name}' is not a valid class name (letters, digits, _ -)")
        if names.count(each.name) > 1:
            raise SetupError(f"class '{each.name}' is named twice")
        _check_weight(f"class '{each.name}'", each.weight)
        for what in ("max_wait_s", "deadline_s"):
            value = getattr(each, what)
            if value is not None and not 0 < value <= _LONGEST_S:
                raise SetupError(f"class '{each.name}': {what} must be above 0, and at most a year")
    if len(given) > _MOST_CLASSES:
        raise SetupError(f"{len(given)} classes are too many: at most {_MOST_CLASSES}")
    known = classes_by_name(given)
    for key in keys:
        for name in key.service_classes:
            if name not in known:
                named = ", ".join(known)
                raise SetupError(f"the key of tenant '{key.tenant}': no class '{name}'; {named}")


def with_zone(instant: datetime) -> datetime:
    """Return the instant with a time zone, UTC by default."""
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _us(instant: datetime) -> int:
    """Return microseconds since the Unix epoch."""
    return (with_zone(instant) - _EPOCH) // _MICROSECOND


# Instants that are written in UTC, whatever their zone, and read again everywhere.
_EARLIEST_US, _LATEST_US = _us(datetime(2000, 1, 1)), _us(datetime(9999, 1, 1))


def tenant_entitlements(
    tenants: tuple[TenantSettings, ...],
    service_classes: tuple[ServiceClassSettings, ...],
    quotas: tuple[QuotaSettings, ...],
) -> Entitlements:
    return Entitlements(
        {each.name: TenantWeight(each.weight, each.apps) for each in tenants},
        classes_by_name(service_classes),
        tuple(Quota(**msgspec.structs.asdict(each)) for each in quotas),
    )


def part_of_quota(quota: Quota, part: Fraction) -> Quota:
    """Return the part of a quota that one of several pools enforces.

    Limits are rounded up, so that each pool admits something: all pools together admit less than
    one more than the limit for each pool. A share of KV memory is one of each pool's memory.
    """
    return msgspec.structs.replace(
        quota,
        **{
            name: ceil(limit * part)
            for name in _SPLIT
            if (limit := getattr(quota, name)) is not None
        },
    )


def check_keys(keys: tuple[KeySettings, ...], path: str | None = None) -> None:
    """Check the keys. `path` is their file.

    Raises SetupError: A key is invalid, or a key or its name is given twice.
    """
    tenant_of: dict[str, str] = {}
    names: set[str] = set()
    where = f"{path}: " if path is not None else ""
    for key in keys:
        if not re.fullmatch(r"[0-9a-f]{64}", key.sha256):
            raise SetupError(
                f"{where}the key of tenant '{key.tenant}' must be 64 hexadecimal digits: the "
                'output of printf %s "$KEY" | sha256sum'
            )
        _check_tenant(key.tenant, where)
        if key.app is not None:
            _check_app(key.app, where)
        if key.name is not None:
            _check_name(key.name, names, where)
        for instant in (key.expires, key.created):
            if instant is not None and not _EARLIEST_US <= _us(instant) < _LATEST_US:
                raise SetupError(
                    f"{where}a key of tenant '{key.tenant}' has an invalid date: years are "
                    "2000 to 9998"
                )
        if key.sha256 in tenant_of:
            named = f"'{tenant_of[key.sha256]}' and '{key.tenant}'"
            raise SetupError(f"{where}the same key is given twice, for the tenants {named}")
        tenant_of[key.sha256] = key.tenant


def _check_name(name: str, names: set[str], where: str) -> None:
    """Check a key's name, and add it to `names`, which has the names of the keys before."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", name):
        raise SetupError(f"{where}'{name}' is not a valid key name (letters, digits, _ . -)")
    if name in names:
        raise SetupError(f"{where}two keys are called '{name}'")
    names.add(name)


def check_tenants(
    tenants: tuple[TenantSettings, ...], keys: tuple[KeySettings, ...], *, keys_change: bool = False
) -> None:
    """Check the tenants.

    A tenant must have a key, unless keys are in a file of their own: the last one may have been
    revoked. Raises SetupError: A weight is out of range, or a tenant is named twice or has no key.
    """
    known = {key.tenant for key in keys}
    seen: set[str] = set()
    for tenant in tenants:
        _check_tenant(tenant.name)
        if tenant.name in seen:
            raise SetupError(f"tenant '{tenant.name}' is named twice")
        seen.add(tenant.name)
        if tenant.name not in known and not keys_change:
            raise SetupError(f"tenant '{tenant.name}' has no key, so nobody calls for it")
        _check_weight(f"tenant '{tenant.name}'", tenant.weight)
        for app, weight in tenant.apps.items():
            _check_app(app)
            _check_weight(f"app '{app}' of tenant '{tenant.name}'", weight)


def is_tenant(name: str) -> bool:
    """Return whether the text is a valid tenant name."""
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) is not None


def _check_tenant(name: str, where: str = "") -> None:
    if not is_tenant(name):
        raise SetupError(f"{where}'{name}' is not a valid tenant name (letters, digits, _ . -)")


def _check_app(name: str, where: str = "") -> None:
    if not re.match(IDENTIFIER_PATTERN, name):
        raise SetupError(f"{where}'{name}' is not a valid app name")


def _is_weight(weight: float) -> bool:
    return _LEAST_WEIGHT <= weight <= _MOST_WEIGHT


def _check_weight(whose: str, weight: float) -> None:
    if not _is_weight(weight):
        raise SetupError(f"{whose}: weight {weight:g} is out of range (0.001 to 1000)")


def check_entitlements(entitlements: Entitlements) -> None:
    """Check entitlements from another process by the limits of settings.

    Raises InvalidRequest: No settings have such values, and arithmetic on them may fail.
    """
    for tenant, share in (entitlements.weights or {}).items():
        if not _is_weight(share.weight) or len(tenant) > _MOST_CHARACTERS:
            raise InvalidRequest("a tenant's name is too long, or its weight out of range")
        if share.apps:
            _check_names(*share.apps)
            _check_weights(*share.apps.values())
    classes = entitlements.classes
    if len(classes) > _MOST_CLASSES + len(SERVICE_CLASSES):
        raise InvalidRequest("there are too many classes of service")
    for name, each in classes.items():
        if not re.match(NAME_PATTERN, name):
            raise InvalidRequest("a class of service has no name")
        _check_weights(each.weight)
        for limit_us in (each.max_wait_us, each.deadline_us):
            if limit_us is not None and not 0 < limit_us <= _LONGEST_S * SECOND:
                raise InvalidRequest("a time of a class of service is out of range")
    for quota in entitlements.quotas:
        _check_names(quota.tenant, quota.app, quota.key)
        _check_quota(quota)


def _check_quota(quota: Quota) -> None:
    for limit in (
        *(quota.calls_per_minute, quota.tokens_per_minute, quota.tokens_per_day),
        *(quota.calls_at_once, quota.workflows_at_once),
    ):
        if limit is not None and limit not in _LIMITS:
            raise InvalidRequest("a limit of a quota is out of range")
    if quota.kv_share is not None and not 0 < quota.kv_share <= 1:
        raise InvalidRequest("the share of memory of a quota is out of range")


def _check_weights(*weights: float) -> None:
    if not all(map(_is_weight, weights)):
        raise InvalidRequest("a weight is out of range")


def _check_names(*names: str | None) -> None:
    for each in names:
        if each is not None and len(each) > _MOST_CHARACTERS:
            raise InvalidRequest("a name is too long")
