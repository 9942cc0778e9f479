"""TLS of the ports that are listened on."""

import logging
import ssl
import time
from collections.abc import Callable

from kairos.host.fresh_context import FreshContext
from kairos.settings.config import Settings
from kairos.settings.tls import TlsFiles, server_context

logger = logging.getLogger(__name__)

_TOLD_S = 60.0  # between two lines of the log that tell of failed handshakes

# What `ServiceTls.change` takes over; see `Reload` for the first.
TLS_SETTINGS = ("tls_certificate", "tls_key", "tls_client_ca", "admin_tls_client_ca")


class PortTls:
    """Of one port."""

    def __init__(
        self, name: str, files: TlsFiles, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`name`: of the port, for the log. Raises SetupError: a file cannot be used."""
        self._name, self._now_s = name, now_s
        self._fresh = FreshContext(name, files, server_context, now_s)
        self._failed = 0  # since the log told of it
        self._told_s: float | None = None

    def context(self) -> ssl.SSLContext:
        """For a client that has just come."""
        return self._fresh()

    def use(self, files: TlsFiles | None) -> None:
        """The settings were read again."""
        if files is None:
            logger.warning("%s goes on with TLS until the next start", self._name)
        else:
            self._fresh.use(files)

    def failed(self, why: str, address: str) -> None:
        """A handshake. There may be thousands a second, and the log tells of them once a minute."""
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
    """Of the ports of a service: None where a port has none."""

    def __init__(self, settings: Settings) -> None:
        """Raises SetupError: a file cannot be used."""
        callers, operators = callers_files(settings), operators_files(settings)
        self.callers = None if callers is None else PortTls("the callers' port", callers)
        self.operators = None if operators is None else PortTls("the operators' port", operators)

    @property
    def is_on(self) -> bool:
        return self.callers is not None

    def changes(self) -> dict[str, Callable[[Settings], None]]:
        """For `Reload`. Without TLS none: it begins with a start alone."""
        if not self.is_on:
            return {}
        return dict.fromkeys(TLS_SETTINGS, _nothing) | {TLS_SETTINGS[0]: self.change}

    def change(self, settings: Settings) -> None:
        """They were read again, with their files. Files that cannot be used change nothing."""
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
    """Whose certificates operators show is said for them alone, or is what callers show."""
    if settings.tls_certificate is None:
        return None
    ca = settings.admin_tls_client_ca or settings.tls_client_ca
    return TlsFiles(settings.tls_certificate, settings.tls_key, ca)
