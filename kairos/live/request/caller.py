"""Who calls."""

import msgspec

from kairos.scheduler.service_classes import STANDARD


class Caller(msgspec.Struct, frozen=True):
    tenant: str
    app: str | None = None  # all that it calls for, where its key or token says so
    service_class: str = STANDARD  # of calls that name none
    service_classes: tuple[str, ...] | None = None  # that it may ask for; None: all


ANYBODY = Caller("default")  # where no key is asked for
