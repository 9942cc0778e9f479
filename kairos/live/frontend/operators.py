"""Who may ask for the operators' routes: whoever reaches them; or, where keys or tokens have roles,
who shows one."""

from collections.abc import MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos.errors import KairosError
from kairos.live.frontend.openai_errors import client_host, error_response
from kairos.live.observers.audit_log import AuditLog
from kairos.live.request.access import Access, authorization
from kairos.live.request.caller import ANYBODY, Caller
from kairos.tenant_settings import Role

_OPEN = {"/health"}  # a supervisor's probes have no key
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
            caller = await self._access.operator(authorization(request), role)
        except KairosError as error:
            if self._audit is not None:
                self._audit.refused(error, None, client_host(request), "operators")
            await error_response(error)(scope, receive, send)
            return
        if role == "admin" and self._audit is not None:
            send = self._told(self._audit, request, caller, send)
        await self._app(scope, receive, send)

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
