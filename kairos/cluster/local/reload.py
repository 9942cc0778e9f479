"""Reload of settings while the service runs: all of them take effect, or none.

A setting that cannot change at runtime is reported as needing a restart.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from kairos.cluster.local.local_control import ENTITLING, LocalControl, entitlements_of
from kairos.core import Entitlements, InvalidRequest, SetupError
from kairos.engines import Fleet
from kairos.gateway import Access, Gains, Gateway, Reread, ServiceClasses
from kairos.observe import AuditLog
from kairos.request import Bodies
from kairos.settings import Settings, classes_by_name

logger = logging.getLogger(__name__)

Change = Callable[[Settings], None]

# Applied even if unchanged: operators' changes to engines are undone, certificates are read again.
_IN_ANY_CASE = ("engine", "tls_certificate")


# Settings that a process which only decides ignores; it may share its file with gateways.
_OF_GATEWAYS = (
    "admin_host",
    "admin_port",
    "identity",
    "infer",
    "keys_path",
    "max_body_bytes",
    "max_connections",
)


class Reload:
    """Settings in force, and the functions that apply changed ones."""

    def __init__(
        self, settings: Settings, changes: Mapping[str, Change], audit: AuditLog | None = None
    ) -> None:
        """Take, by the name of a setting, the function that applies a new value.

        It cannot fail: settings are validated when they are loaded.
        """
        # Loads the settings; None: there are no files.
        self.load: Callable[[], Settings] | None = None
        self._in_force = settings
        self._changes, self._audit = changes, audit

    def again(self) -> Reread:
        """Reload the settings from their files.

        Raises:
            InvalidRequest: The process was started without files of settings.
        """
        if self.load is None:
            raise InvalidRequest(
                "there is nothing to read again: it was started without --config, keys_path and TLS"
            )
        return self(self.load)

    def on_hangup(self) -> None:
        """Reload on SIGHUP; log a warning if the process was started without files."""
        try:
            self.again()
        except InvalidRequest as error:
            logger.warning("%s", error)

    def __call__(self, load: Callable[[], Settings]) -> Reread:
        try:
            told = load()
        except SetupError as error:
            logger.error("the settings stay as they are: %s", error)  # noqa: TRY400 - it says all
            self._tell(None, str(error))
            return Reread(changed=[], needs_restart=[], problem=str(error))
        differ = [
            field.name
            for field in msgspec.structs.fields(Settings)
            if getattr(told, field.name) != getattr(self._in_force, field.name)
        ]
        changed = [name for name in differ if name in self._changes]
        for name in self._changes:
            if name in changed or name in _IN_ANY_CASE:
                self._changes[name](told)
        now = {name: getattr(told, name) for name in changed}
        self._in_force = msgspec.structs.replace(self._in_force, **now)
        logger.info("the settings were read again; changed: %s", ", ".join(changed) or "nothing")
        self._tell(", ".join(changed) or "nothing", None)
        if waiting := [name for name in differ if name not in self._changes]:
            logger.warning("needs a restart, and stays as it was: %s", ", ".join(waiting))
        return Reread(changed=changed, needs_restart=waiting, problem=None)

    def _tell(self, changed: str | None, problem: str | None) -> None:
        if self._audit is not None:
            self._audit.log_action("reload", target=changed, message=problem)


class Entitled(Protocol):
    """A balancer that takes new entitlements, in this process or in another one."""

    def entitle(self, entitlements: Entitlements) -> None:
        """Apply these entitlements from now on."""


def gateway_changes(
    fleet: Fleet, access: Access, bodies: Bodies, begun_with: Settings
) -> dict[str, Change]:
    def limit_each(settings: Settings) -> None:
        bodies.max_bytes = settings.max_body_bytes

    def limit_all(settings: Settings) -> None:
        bodies.max_held_bytes = settings.max_held_bytes

    def change_keys(settings: Settings) -> None:
        _keys(access)(settings)
        if not settings.asks_for_keys:
            logger.warning("no API keys are configured any more: anyone who reaches it may call")

    changes: dict[str, Change] = {
        "engine": _engines(fleet),
        "key": change_keys,
        "keys_path": change_keys,  # it may change whether a key is needed
        "max_body_bytes": limit_each,
    }
    # With Kafka the same limit also bounds calls over the bus; that one cannot change at runtime.
    return changes | ({"max_held_bytes": limit_all} if begun_with.bus == "memory" else {})


def balancer_changes(fleet: Fleet, access: Access) -> dict[str, Change]:
    """Return the changes for a process that decides and serves no clients."""
    changes: dict[str, Change] = dict.fromkeys(_OF_GATEWAYS, lambda _: None)
    return changes | {"engine": _engines(fleet), "key": _keys(access)}


def of_keys(access: Access) -> dict[str, Change]:
    """Return the changes for a process that checks API keys and reloads no other setting."""
    return dict.fromkeys(("key", "keys_path"), _keys(access))


def entitlement_changes(
    brain: Entitled, access: Access, gateway: Gateway | None = None
) -> dict[str, Change]:
    """Return the changes of weights, classes of service and quotas."""

    def change(settings: Settings) -> None:
        known = classes_by_name(settings.service_class)
        access.know_classes(known)
        if gateway is not None:
            gateway.classes = ServiceClasses(known)
        brain.entitle(entitlements_of(settings))

    return dict.fromkeys(ENTITLING, change)


def policy_changes(brain: LocalControl, gains: Gains) -> dict[str, Change]:
    def change(settings: Settings) -> None:
        brain.order_by(settings.policy)
        gains.policy = settings.policy

    return {"policy": change}


def _engines(fleet: Fleet) -> Change:
    return lambda settings: fleet.follow(settings.own_engines)


def _keys(access: Access) -> Change:
    return lambda settings: access.change_keys(settings.key, needed=settings.asks_for_keys)
