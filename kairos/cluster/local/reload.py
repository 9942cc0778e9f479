"""Settings that are read again while the service runs: in force at once as far as that can be, and
all of them or none."""

import logging
from collections.abc import Callable, Mapping

import msgspec

from kairos.core.errors import InvalidRequest, SetupError
from kairos.gateway.page.acts import Reread
from kairos.observe.audit_log import AuditLog
from kairos.settings.config import Settings

logger = logging.getLogger(__name__)

Change = Callable[[Settings], None]

# What an operator changed meanwhile is put right, and files of the same names are read again.
_IN_ANY_CASE = ("engine", "tls_certificate")


class Reload:
    """What is in force, and how other settings take effect."""

    def __init__(
        self, settings: Settings, changes: Mapping[str, Change], audit: AuditLog | None = None
    ) -> None:
        """`changes`, by the name of a setting, put another value of it into force, and cannot fail:
        whatever can be wrong with settings was found when they were read. What has no change needs
        a restart. `audit`: is told of each reading."""
        self.load: Callable[[], Settings] | None = (
            None  # how they are read; None: there are no files
        )
        self._in_force = settings
        self._changes, self._audit = changes, audit

    def again(self) -> Reread:
        """From the files that they were read from.

        Raises:
            InvalidRequest: there are none.
        """
        if self.load is None:
            raise InvalidRequest(
                "there is nothing to read again: it was started without --config, keys_path and TLS"
            )
        return self(self.load)

    def on_hangup(self) -> None:
        """The same; where there are none, the log says so."""
        try:
            self.again()
        except InvalidRequest as error:
            logger.warning("%s", error)

    def __call__(self, load: Callable[[], Settings]) -> Reread:
        """Read, check, apply, and say, in the log too, what came of it."""
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
            self._audit.acted("reload", target=changed, message=problem)
