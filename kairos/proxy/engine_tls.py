"""TLS to engines: accepted certificates, and the client certificate."""

import ssl

from kairos.core import SetupError
from kairos.host import FreshContext
from kairos.settings import MAX_ENGINES, TlsFiles, client_context


class TlsFilesOfNoUse(OSError):
    """The TLS files cannot be used, so no connection can be made."""


class EngineContexts:
    """TLS contexts by their files; files that many engines share are read once."""

    def __init__(self) -> None:
        self._fresh: dict[TlsFiles, FreshContext] = {}

    def of(self, files: TlsFiles) -> ssl.SSLContext:
        """Return the context for a new connection.

        Raises:
            TlsFilesOfNoUse: The files cannot be used, and never could since they were set.
        """
        fresh = self._fresh.get(files)
        if fresh is None:
            if len(self._fresh) >= MAX_ENGINES:  # after many reloads
                self._fresh.clear()
            try:
                fresh = FreshContext("connections to engines", files, client_context)
            except SetupError as error:
                raise TlsFilesOfNoUse(str(error)) from None
            self._fresh[files] = fresh
        return fresh()


def why_not(error: ssl.SSLError) -> str:
    """Return a message for operators on why TLS to an engine failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = getattr(error, "reason", None)  # which one that was not OpenSSL's has not
    return f"TLS failed: {reason or error}"
