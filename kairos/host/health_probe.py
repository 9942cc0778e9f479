"""Health check of a Kairos, for probes that report an exit status."""

import contextlib
from urllib.parse import urlsplit

from kairos.core import SetupError
from kairos.host.json_connection import check_url, connection_to, context_of, troubles_told
from kairos.settings import TlsFiles

_SAID = 300  # characters of an answer that are shown


def check_health(url: str, files: TlsFiles, timeout_s: float) -> str:
    """Request the URL, or its /health if it has no path. Return a message for the operator.

    Raises:
        SetupError: It does not answer 200 in time; the message says what it does.
    """
    check_url(url, "https://127.0.0.1:8000")
    path = urlsplit(url).path
    path = path if path not in ("", "/") else "/health"
    connection = connection_to(url, context_of(url, files), timeout_s)
    with contextlib.closing(connection), troubles_told(url):
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        said = answer.read(_SAID).decode(errors="replace")
    if answer.status != 200:
        raise SetupError(f"{url}: {path} answered {answer.status}: {said}")
    return f"{url} is well"
