"""Who may ask for the operators' routes: whoever reaches them; or, where keys or tokens have roles,
who shows one."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos.errors import KairosError
from kairos.live.frontend.openai_errors import error_response
from kairos.live.request.access import Access, authorization
from kairos.tenant_settings import Role

_OPEN = {"/health"}  # a supervisor's probes have no key
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
                await self._access.operator(authorization(request), role)
            except KairosError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
