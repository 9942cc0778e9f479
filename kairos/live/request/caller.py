"""Who calls."""

import msgspec

from kairos.entitlements import STANDARD


class Caller(msgspec.Struct, frozen=True):
    tenant: str
    app: str | None = None  # all that it calls for, where its key or token says so
    service_class: str = STANDARD  # of calls that name none
    service_classes: tuple[str, ...] | None = None  # that it may ask for; None: all
    key: str | None = None  # the name of its key, if that has one


ANYBODY = Caller("default")  # where no key is asked for
