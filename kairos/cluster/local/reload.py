"""Reload of settings while the service runs: all of them take effect, or none.

A setting that cannot change at runtime is reported as needing a restart.
"""

import logging
from collections.abc import Callable, Mapping

import msgspec

from kairos.core import InvalidRequest, SetupError
from kairos.gateway import Reread
from kairos.observe import AuditLog
from kairos.settings import Settings

logger = logging.getLogger(__name__)

Change = Callable[[Settings], None]

# Applied even if unchanged: operators' changes to engines are undone, certificates are read again.
_IN_ANY_CASE = ("engine", "tls_certificate")


class Reload:
    """Settings in force, and the functions that apply changed ones."""

    def __init__(
        self, settings: Settings, changes: Mapping[str, Change], audit: AuditLog | None = None
    ) -> None:
        """Create the reload.

        Args:
            settings: The settings in force.
            changes: By the name of a setting, the function that applies a new value. It cannot
                fail: settings are validated when they are loaded. A setting without one needs a
                restart.
            audit: Records each reload.
        """
        self.load: Callable[[], Settings] | None = (
            None  # loads the settings; None: there are no files
        )
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
        """Load, check and apply settings. Return and log the result."""
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
