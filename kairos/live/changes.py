"""What takes effect at once of settings that are read again."""

import logging

from kairos.config import Settings
from kairos.live.control.brain import ENTITLING, entitlements_of
from kairos.live.control.local_control import LocalControl
from kairos.live.control.reload import Change
from kairos.live.engines.fleet import Fleet
from kairos.live.frontend.gateway import Gateway
from kairos.live.pool.cluster_control import ClusterControl
from kairos.live.request.access import Access
from kairos.live.request.service_class import ServiceClasses
from kairos.tenant_settings import classes

logger = logging.getLogger(__name__)

Brain = LocalControl | ClusterControl

# What a process does not read that only decides; the file may be shared with those that do.
_OF_GATEWAYS = (
    "admin_host",
    "admin_port",
    "identity",
    "infer",
    "keys_path",
    "max_body_bytes",
    "max_connections",
)


def of_gateway(
    gateway: Gateway, brain: Brain, fleet: Fleet, begun_with: Settings
) -> dict[str, Change]:
    """Of a process that serves clients, by the name of the setting."""
    bodies = gateway.bodies

    def limit_each(settings: Settings) -> None:
        bodies.max_bytes = settings.max_body_bytes

    def limit_all(settings: Settings) -> None:
        bodies.max_held_bytes = settings.max_held_bytes

    def change_keys(settings: Settings) -> None:
        gateway.access.follow(settings)
        if not settings.asks_for_keys:
            logger.warning("no API keys are configured any more: anyone who reaches it may call")

    def entitle(settings: Settings) -> None:
        gateway.access.follow(settings)
        gateway.classes = ServiceClasses(classes(settings.service_class))
        brain.entitle(entitlements_of(settings))

    changes: dict[str, Change] = {
        "engine": lambda settings: fleet.follow(settings.engine),
        "key": change_keys,
        "keys_path": change_keys,  # perhaps whether one is needed, where the keys are the same
        "max_body_bytes": limit_each,
        **dict.fromkeys(ENTITLING, entitle),
    }
    # On a bus the calls that come over it are bounded by the same, for good.
    return changes | ({"max_held_bytes": limit_all} if begun_with.bus == "memory" else {})


def of_balancer(access: Access, brain: Brain, fleet: Fleet) -> dict[str, Change]:
    """Of a process that only decides, by the name of the setting."""

    def entitle(settings: Settings) -> None:
        access.follow(settings)
        brain.entitle(entitlements_of(settings))

    changes: dict[str, Change] = dict.fromkeys(_OF_GATEWAYS, lambda _: None)
    changes |= dict.fromkeys(ENTITLING, entitle)
    return changes | {
        "engine": lambda settings: fleet.follow(settings.engine),
        "key": access.follow,
    }
