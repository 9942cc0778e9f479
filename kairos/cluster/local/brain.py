"""Creation of the balancer from the settings."""

import msgspec

from kairos.core import SECOND, Balancer, Entitlements, placement_named, policy_named
from kairos.settings import Settings, part_of_quota, tenant_entitlements


def new_balancer(settings: Settings) -> Balancer:
    return Balancer(
        policy_named(settings.policy),
        placement_named(settings.placement),
        max_waiting=settings.max_waiting,
        max_wait_us=settings.max_wait_s * SECOND,
        idle_us=settings.workflow_idle_s * SECOND,
        budget=settings.budget,
        # Without keys all are one tenant.
        tenant_share=settings.caller_share if settings.asks_for_keys else 1,
        suspicion_us=settings.suspicion_s * SECOND,
        entitlements=entitlements_of(settings),
    )


ENTITLING = ("tenant", "service_class", "quota")  # settings that determine entitlements


def entitlements_of(settings: Settings) -> Entitlements:
    """Return the entitlements of the tenants, service classes and quotas in the settings.

    One of several pools enforces its part of each quota.
    """
    entitled = tenant_entitlements(settings.tenant, settings.service_class, settings.quota)
    part = settings.pool_share
    if part == 1:
        return entitled
    return msgspec.structs.replace(
        entitled, quotas=tuple(part_of_quota(each, part) for each in entitled.quotas)
    )
