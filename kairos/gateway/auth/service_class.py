"""Class of service of a call: as requested, if its key allows that class."""

from collections.abc import Mapping

from kairos.core import (
    RAW_HEADERS,
    SERVICE_CLASSES,
    Header,
    InvalidRequest,
    KairosError,
    ServiceClass,
)
from kairos.request import Caller, Headers

_CLASS = RAW_HEADERS[Header.CLASS]


class ClassNotAllowed(KairosError):
    """The API key does not allow this class of service (`service_classes` of `[[key]]`)."""

    status = 403
    code = "class_not_allowed"

    def __init__(self, name: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"this API key may not use class '{name}', only: {', '.join(allowed)}")


class ServiceClasses:
    """All known classes of service."""

    def __init__(self, known: Mapping[str, ServiceClass] = SERVICE_CLASSES) -> None:
        self._known = known
        self._spare = [name for name, each in known.items() if each.goes == "spare"]
        self._deadlines = {n: each.deadline_us for n, each in known.items() if each.deadline_us}

    def of(self, headers: Headers, caller: Caller) -> str:
        """Return the class of a call.

        Raises:
            InvalidRequest: The header names an unknown class.
            ClassNotAllowed: The key does not allow the class.
        """
        value = headers.get(_CLASS)
        if value is None:
            return caller.service_class
        name = value.decode("latin-1")
        if name not in self._known:
            known = ", ".join(self._known)
            raise InvalidRequest(
                f"header {Header.CLASS.lower()} names no class of service: {known}"
            )
        if caller.service_classes is not None and name not in caller.service_classes:
            raise ClassNotAllowed(name, caller.service_classes)
        return name

    def spare(self, caller: Caller) -> str | None:
        """Return a best-effort class that the caller may use, or None."""
        allowed = caller.service_classes
        return next((name for name in self._spare if allowed is None or name in allowed), None)

    def deadline(self, name: str, named: int | None, now: int) -> int | None:
        """Return the call's own deadline, else that of its class, in µs since the epoch."""
        after_us = self._deadlines.get(name) if named is None and self._deadlines else None
        return named if after_us is None else now + after_us
