"""Who may ask for the operators' routes: whoever reaches them; or, where keys or tokens have roles,
who shows one."""

import base64
import binascii
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos.errors import KairosError, Unauthorized
from kairos.live.frontend.openai_errors import client_host, error_response
from kairos.live.observers.audit_log import AuditLog
from kairos.live.request.access import Access, authorization
from kairos.live.request.caller import ANYBODY, Caller
from kairos.tenant_settings import Role

PAGE = "/ui"  # what a browser shows, and all beneath it
_OPEN = {"/health"}  # a supervisor's probes have no key
_ASK = 'Basic realm="Kairos: the key of a viewer or admin as password", charset="UTF-8"'
_SEES = {"GET", "HEAD", "OPTIONS"}


class Operators:
    """Lets requests through that may see, or change, what they ask for; and tells the audit log of
    changes, and of refusals. A route says what it changed in the request's state, as `changed`."""

    def __init__(self, app: ASGIApp, access: Access, audit: AuditLog | None) -> None:
        self._app, self._access, self._audit = app, access, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.url.path in _OPEN:
            await self._app(scope, receive, send)
            return
        role: Role = "viewer" if request.method in _SEES else "admin"
        try:
            caller = await self._access.operator(_shown(request), role)
        except KairosError as error:
            await self._refuse(error, request)(scope, receive, send)
            return
        if role == "admin" and self._audit is not None:
            send = self._told(self._audit, request, caller, send)
        await self._app(scope, receive, send)

    def _refuse(self, error: KairosError, request: Request) -> Response:
        if self._audit is not None:
            self._audit.refused(error, None, client_host(request), "operators")
        response = error_response(error)
        if isinstance(error, Unauthorized) and _is_page(request):
            response.headers["www-authenticate"] = _ASK
        return response

    def _told(self, audit: AuditLog, request: Request, caller: Caller, send: Send) -> Send:
        """What tells the audit log of a change once it is answered, before the operator hears."""

        async def tell(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                audit.acted(
                    f"{request.method} {request.url.path}",
                    by=None if caller is ANYBODY else caller,
                    address=client_host(request),
                    port="operators",
                    target=getattr(request.state, "changed", None),
                    status=message["status"],
                )
            await send(message)

        return tell


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
