"""Callers and their roles."""

import asyncio
from collections.abc import Mapping

import msgspec

from kairos.core import STANDARD_CLASS, KairosError
from kairos.settings import Role

# The roles that each role includes.
ROLE_RIGHTS: Mapping[Role, tuple[Role, ...]] = {
    "caller": ("caller",),
    "viewer": ("viewer",),
    "admin": ("caller", "viewer", "admin"),
}


class Caller(msgspec.Struct, frozen=True):
    tenant: str
    app: str | None = None  # all that it calls for, where its key or token says so
    service_class: str = STANDARD_CLASS  # of calls that name none
    service_classes: tuple[str, ...] | None = None  # that it may ask for; None: all
    key: str | None = None  # the name of its key, if that has one
    roles: tuple[Role, ...] = ("caller",)
    name: str | None = None  # for people: what its key is called, or its token's subject

    def needs(self, role: Role) -> None:
        """Check a role. Raises NotAllowed: The caller does not have it."""
        if role not in self.roles:
            raise NotAllowed(role, self)


class NotAllowed(KairosError):
    """The key or token is valid, but its role does not allow this."""

    status = 403
    code = "role_not_allowed"

    def __init__(self, needed: Role, by: Caller) -> None:
        has = ", ".join(by.roles)
        super().__init__(f"this needs the role {needed}; the key or token has {has}")
        self.by = by


ANONYMOUS = Caller("default", roles=ROLE_RIGHTS["admin"])  # where no key is asked for


class KeysComing(Exception):
    """The token's issuer's keys are being fetched: check the token again after that."""

    def __init__(self, coming: "asyncio.Future[None]") -> None:
        self.coming = coming
