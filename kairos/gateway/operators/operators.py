"""Who may ask for the operators' routes: whoever reaches them; or, where keys or tokens have roles,
who shows one."""

import base64
import binascii
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kairos.core.errors import KairosError, Unauthorized
from kairos.gateway.auth.access import Access
from kairos.gateway.server.openai_errors import send_error
from kairos.observe.audit_log import AuditLog
from kairos.request.caller import ANYBODY, Caller
from kairos.request.client_response import ASGIApp, Receive, Scope, Send
from kairos.settings.addresses import is_loopback
from kairos.settings.config import Settings
from kairos.settings.tenants import Role

PAGE = "/ui"  # what a browser shows, and all beneath it
ASK = f"{PAGE}/ask/"  # what whoever looks may have worked out
ACT = f"{PAGE}/act/"  # what an admin may do by it
_OPEN = b"/health"  # a supervisor's probes have no key
_PAGE, _ASK, _ACT = f"{PAGE}/".encode(), ASK.encode(), ACT.encode()
_ASK_FOR_KEY = 'Basic realm="Kairos: the key of a viewer or admin as password", charset="UTF-8"'
_SEES = {"GET", "HEAD", "OPTIONS"}


def may_have_page(settings: Settings) -> bool:
    """Of a process whose one port is for /health and /metrics, or for clients, too, and may be
    reached from elsewhere: whether only those would see its page who may."""
    return is_loopback(settings.host) or settings.asks_operators


class OtherOrigin(KairosError):
    """Another site's page may have a browser send what its user may."""

    status = 403
    code = "other_origin"

    def __init__(self) -> None:
        super().__init__("only Kairos's own page may ask for this: open it, and do it there")


class Needed(msgspec.Struct, frozen=True):
    """What a request for the operators' port must show."""

    role: Role | None  # None: nothing
    is_page: bool = False  # a browser may show it, by its user's password
    is_from_page: bool = False  # only Kairos's own page may send it


def needed(method: str, raw_path: bytes) -> Needed:
    """Decide about access. Nothing else does so by a path.

    Only the path as it was sent counts: not the decoded one, and none that a framework derives from
    a URL or a header. A path in any other spelling than these needs an admin to change anything,
    and a viewer to see anything.
    """
    if raw_path == _OPEN:
        return Needed(None)
    if method in _SEES:
        return Needed("viewer", is_page=(raw_path + b"/").startswith(_PAGE))
    is_posted = method == "POST"
    if is_posted and raw_path.startswith(_ASK):
        return Needed("viewer", is_from_page=True)
    return Needed("admin", is_from_page=is_posted and raw_path.startswith(_ACT))


class Operators:
    """Lets requests through that may see, or change, what they ask for; and tells the audit log of
    changes, and of refusals. A route says what it changed in the request's state, as `changed`."""

    def __init__(self, app: ASGIApp, access: Access, audit: AuditLog | None) -> None:
        self._app, self._access, self._audit = app, access, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = needed(scope["method"], scope["raw_path"])
        if asked.role is None:
            await self._app(scope, receive, send)
            return
        try:
            if asked.is_from_page:
                _check_origin(scope)
            caller = await self._access.operator(_shown(scope, asked), asked.role)
        except KairosError as error:
            await self._refuse(error, scope, send, is_page=asked.is_page)
            return
        scope.setdefault("state", {})["caller"] = caller
        if asked.role == "admin" and self._audit is not None:
            send = self._told(self._audit, scope, caller, send)
        await self._app(scope, receive, send)

    async def _refuse(self, error: KairosError, scope: Scope, send: Send, *, is_page: bool) -> None:
        if self._audit is not None:
            self._audit.refused(error, None, _client_host(scope), "operators")
        if isinstance(error, Unauthorized) and is_page:
            await send_error(error, send, (b"www-authenticate", _ASK_FOR_KEY.encode()))
        else:
            await send_error(error, send)

    def _told(self, audit: AuditLog, scope: Scope, caller: Caller, send: Send) -> Send:
        """What tells the audit log of a change once it is answered, before the operator hears."""

        async def tell(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                audit.acted(
                    f"{scope['method']} {scope['path']}",
                    by=None if caller is ANYBODY else caller,
                    address=_client_host(scope),
                    port="operators",
                    target=scope["state"].get("changed"),
                    status=message["status"],
                )
            await send(message)

        return tell


def _client_host(scope: Scope) -> str | None:
    client = scope["client"]
    return None if client is None else client[0]


def _header(scope: Scope, name: bytes) -> str | None:
    """The first of that name."""
    found = (value for header, value in scope["headers"] if header == name)
    value = next(found, None)
    return None if value is None else value.decode("latin-1")


def _check_origin(scope: Scope) -> None:
    """A browser says which page asks, and no page can say another; what Kairos is asked as, no page
    can choose (`hosts.py`). A form can send no JSON, and a script of another origin none without
    asking first, which is not answered here. Behind a proxy that ends TLS, the page's own scheme
    is https and this request's is not.

    Raises:
        OtherOrigin: it is another page, or none.
    """
    origin = urlsplit(_header(scope, b"origin") or "")
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    same_host = hosts == [origin.netloc]
    same_scheme = origin.scheme in ("https", scope["scheme"])
    same_site = _header(scope, b"sec-fetch-site") in (None, "same-origin")
    is_json = _header(scope, b"content-type") == "application/json"
    if not (same_host and same_scheme and same_site and is_json):
        raise OtherOrigin


def _shown(scope: Scope, asked: Needed) -> bytes | None:
    """A browser asks its user for a name, which does not matter, and a password, which is the key;
    and then shows them with all that it asks for, also where another site's page has it ask. So
    they count for the page alone: for what changes nothing and no other site can read, and for what
    no other site can have sent."""
    value = _header(scope, b"authorization")
    shown = None if value is None else value.encode("latin-1")
    counts = asked.is_page or asked.is_from_page
    if shown is None or not counts or shown[:6].lower() != b"basic ":
        return shown
    try:
        _, _, key = base64.b64decode(shown[6:].strip(), validate=True).partition(b":")
    except binascii.Error:
        return shown
    return b"Bearer " + key
