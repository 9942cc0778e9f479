"""TLS of the listening ports."""

import logging
import ssl
import time
from collections.abc import Callable

from kairos.host import FreshContext
from kairos.settings import Settings, TlsFiles, server_context

logger = logging.getLogger(__name__)

_TOLD_S = 60.0  # between two log lines on failed handshakes

# What `ServiceTls.change` takes over; see `Reload` for the first.
TLS_SETTINGS = ("tls_certificate", "tls_key", "tls_client_ca", "admin_tls_client_ca")


class PortTls:
    """TLS of one port."""

    def __init__(
        self, name: str, files: TlsFiles, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Load the files. `name` is the port's name in the log.

        Raises:
            SetupError: A file cannot be used.
        """
        self._name, self._now_s = name, now_s
        self._fresh = FreshContext(name, files, server_context, now_s)
        self._failed = 0  # since the log told of it
        self._told_s: float | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new client."""
        return self._fresh()

    def use(self, files: TlsFiles | None) -> None:
        """Use other files, after a reload of the settings."""
        if files is None:
            logger.warning("%s keeps TLS until the next restart", self._name)
        else:
            self._fresh.use(files)

    def failed(self, why: str, address: str) -> None:
        """Count a failed handshake.

        They are logged once a minute: there may be thousands a second.
        """
        self._failed += 1
        now_s = self._now_s()
        if self._told_s is None or now_s - self._told_s >= _TOLD_S:
            how_often = "a handshake" if self._failed == 1 else f"{self._failed} handshakes"
            logger.warning(
                "TLS: %s failed at %s; the last, of a client %s: %s",
                *(how_often, self._name, address, why),
            )
            self._failed, self._told_s = 0, now_s


class ServiceTls:
    """TLS of a service's ports: None where a port has none."""

    def __init__(self, settings: Settings) -> None:
        """Load the files of the settings.

        Raises:
            SetupError: A file cannot be used.
        """
        callers, operators = callers_files(settings), operators_files(settings)
        self.callers = None if callers is None else PortTls("the callers' port", callers)
        self.operators = None if operators is None else PortTls("the operators' port", operators)

    @property
    def is_on(self) -> bool:
        return self.callers is not None

    def changes(self) -> dict[str, Callable[[Settings], None]]:
        """Return the changes for `Reload`; none without TLS, which needs a restart to begin."""
        if not self.is_on:
            return {}
        return dict.fromkeys(TLS_SETTINGS, _nothing) | {TLS_SETTINGS[0]: self.change}

    def change(self, settings: Settings) -> None:
        """Apply reloaded settings, and read the files again. Unusable files change nothing."""
        if self.callers is not None:
            self.callers.use(callers_files(settings))
        if self.operators is not None:
            self.operators.use(operators_files(settings))


def _nothing(_: Settings) -> None:
    pass


def callers_files(settings: Settings) -> TlsFiles | None:
    if settings.tls_certificate is None:
        return None
    return TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def operators_files(settings: Settings) -> TlsFiles | None:
    """Return the files for the operators' port; its client CA defaults to that of callers."""
    if settings.tls_certificate is None:
        return None
    ca = settings.admin_tls_client_ca or settings.tls_client_ca
    return TlsFiles(settings.tls_certificate, settings.tls_key, ca)
