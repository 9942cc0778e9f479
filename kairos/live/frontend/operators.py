"""Who may ask for the operators' routes: whoever reaches them; or, where keys or tokens have roles,
who shows one."""

import base64
import binascii

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos.errors import KairosError, Unauthorized
from kairos.live.frontend.openai_errors import error_response
from kairos.live.request.access import Access, authorization
from kairos.tenant_settings import Role

PAGE = "/ui"  # what a browser shows, and all beneath it
_OPEN = {"/health"}  # a supervisor's probes have no key
_ASK = 'Basic realm="Kairos: the key of a viewer or admin as password", charset="UTF-8"'
_SEES = {"GET", "HEAD", "OPTIONS"}


class Operators:
    """Lets requests through that may see, or change, what they ask for."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.url.path not in _OPEN:
            try:
                role: Role = "viewer" if request.method in _SEES else "admin"
                await self._access.operator(_shown(request), role)
            except KairosError as error:
                response = error_response(error)
                if isinstance(error, Unauthorized) and _is_page(request):
                    response.headers["www-authenticate"] = _ASK
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_page(request: Request) -> bool:
    return request.method in _SEES and f"{request.url.path}/".startswith(f"{PAGE}/")


def _shown(request: Request) -> bytes | None:
    """A browser asks its user for a name, which does not matter, and a password, which is the key;
    and then shows them with all that it asks for, also where another site's page has it ask. So
    they count for the page alone, which changes nothing, and which no other site can read."""
    shown = authorization(request)
    if shown is None or not _is_page(request) or shown[:6].lower() != b"basic ":
        return shown
    try:
        _, _, key = base64.b64decode(shown[6:].strip(), validate=True).partition(b":")
    except binascii.Error:
        return shown
    return b"Bearer " + key
