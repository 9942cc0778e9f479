"""How commands reach a running Kairos: over TLS with files of their own, where they are named."""

import ssl

from kairos.errors import SetupError
from kairos.tls_settings import TlsFiles, check_pair, client_context

_NAMES = {"certificate": "--tls-certificate", "key": "--tls-key"}


def context_of(url: str, files: TlsFiles) -> ssl.SSLContext | None:
    """For https URLs; None for others. Without `files.ca`, authorities of the system count.

    Raises:
        SetupError: a file cannot be used, or would not be, since the URL has no TLS.
    """
    check_pair(files, _NAMES)
    if url.lower().startswith("https://"):
        return client_context(files)
    if files != TlsFiles():
        raise SetupError(f"{url} has no TLS: --tls-ca, --tls-certificate, --tls-key need https://")
    return None
