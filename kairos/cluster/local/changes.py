"""Changes of a running process when its settings are reloaded, by the name of the setting."""

import logging
from typing import TYPE_CHECKING, Protocol

from kairos.cluster.local.brain import ENTITLING, entitlements_of
from kairos.cluster.local.reload import Change
from kairos.core import Entitlements
from kairos.engines import Fleet
from kairos.gateway import Access, Gains, Gateway, ServiceClasses
from kairos.request import Bodies
from kairos.settings import Settings, classes_by_name

if TYPE_CHECKING:
    from kairos.cluster.local.local_control import LocalControl

logger = logging.getLogger(__name__)

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
    changes: dict[str, Change] = dict.fromkeys(_OF_GATEWAYS, _nothing)
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


def policy_changes(brain: "LocalControl", gains: Gains) -> dict[str, Change]:
    """Return the change of the scheduling policy."""

    def change(settings: Settings) -> None:
        brain.order_by(settings.policy)
        gains.policy = settings.policy

    return {"policy": change}


def _nothing(_: Settings) -> None:
    pass


def _engines(fleet: Fleet) -> Change:
    return lambda settings: fleet.follow(settings.own_engines)


def _keys(access: Access) -> Change:
    return lambda settings: access.change_keys(settings.key, needed=settings.asks_for_keys)
