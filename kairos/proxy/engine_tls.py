"""TLS to engines: whose certificates are accepted, and what is shown to them."""

import ssl

from kairos.core.errors import SetupError
from kairos.host.fresh_context import FreshContext
from kairos.settings.engines import MAX_ENGINES
from kairos.settings.tls import TlsFiles, client_context


class TlsFilesOfNoUse(OSError):
    """No connection can be made with them."""


class EngineContexts:
    """By the files that settings name; those that many engines share are read once."""

    def __init__(self) -> None:
        self._fresh: dict[TlsFiles, FreshContext] = {}

    def of(self, files: TlsFiles) -> ssl.SSLContext:
        """For a connection that begins now.

        Raises:
            TlsFilesOfNoUse: the files cannot be used, and never could since they were named.
        """
        fresh = self._fresh.get(files)
        if fresh is None:
            if len(self._fresh) >= MAX_ENGINES:  # settings were read again and again
                self._fresh.clear()
            try:
                fresh = FreshContext("connections to engines", files, client_context)
            except SetupError as error:
                raise TlsFilesOfNoUse(str(error)) from None
            self._fresh[files] = fresh
        return fresh()


def why_not(error: ssl.SSLError) -> str:
    """What an operator reads where TLS to an engine failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = getattr(error, "reason", None)  # which one that was not OpenSSL's has not
    return f"TLS failed: {reason or error}"
