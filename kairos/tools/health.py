"""Whether a Kairos is well, for probes that end with a status."""

import http.client
import ssl
from urllib.parse import urlsplit

from kairos.engine_settings import is_http_url
from kairos.errors import SetupError
from kairos.tls_settings import TlsFiles
from kairos.tools.service_connection import context_of

_SAID = 300  # characters of an answer that are shown


def check(url: str, files: TlsFiles, timeout_s: float) -> str:
    """Ask the URL, or its /health where it has no path. Returns what to tell the operator.

    Raises:
        SetupError: it does not answer 200 in time; the message says what it does.
    """
    if not is_http_url(url) or "@" in url:
        raise SetupError(f"'{url}' is no URL such as https://127.0.0.1:8000")
    parts = urlsplit(url)
    path = parts.path if parts.path not in ("", "/") else "/health"
    context = context_of(url, files)
    assert parts.hostname is not None
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        if context is None
        else http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_s, context=context
        )
    )
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        said = answer.read(_SAID).decode(errors="replace")
    except ssl.SSLCertVerificationError as error:
        raise SetupError(
            f"{url}: its certificate is not accepted: {error.verify_message}"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"{url}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise SetupError(f"{url}: {path} answered {answer.status}: {said}")
    return f"{url} is well"
