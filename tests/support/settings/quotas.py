"""Limits of tenants as settings have them."""

from kairos.settings.tenants import QuotaSettings, ServiceClassSettings

__all__ = ["QuotaSettings", "ServiceClassSettings"]
