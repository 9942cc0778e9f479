"""The operators' port, without the application behind it (`admin.py`): who may ask for what.

Everyone who reaches the port has access or, where keys or tokens have roles, everyone with one.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from kairos.core import Balancer, KairosError, Unauthorized
from kairos.engines import Fleet, Monitor
from kairos.gateway.api.front import LateApp, MetricFamilies, PortFront, Probes, name_answers
from kairos.gateway.auth.access import Access
from kairos.gateway.server.cors import ANY_HOST, HostNames, UnknownHost
from kairos.gateway.server.openai_errors import client_host, send_error
from kairos.observe import AuditLog
from kairos.request import ANONYMOUS, ASGIApp, Caller, Receive, Scope, Send
from kairos.settings import Role, Settings, is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI


PAGE = "/ui"  # the page, and all paths below
ASK = f"{PAGE}/ask/"  # computations that a viewer may start
ACT = f"{PAGE}/act/"  # actions of an admin
_OPEN = b"/health"  # a supervisor's probes have no key
_PAGE, _ASK, _ACT = f"{PAGE}/".encode(), ASK.encode(), ACT.encode()
_ASK_FOR_KEY = b'Basic realm="Kairos: the key of a viewer or admin as password", charset="UTF-8"'
_SEES = {"GET", "HEAD", "OPTIONS"}


def may_have_page(settings: Settings) -> bool:
    """Return whether a process may serve the page on its only port, which also has other routes.

    It may if the port is only reachable from this host, or if operators need a key.
    """
    return is_loopback(settings.host) or settings.asks_operators


class OtherOrigin(KairosError):
    """Another site's page may not use the rights of a browser's user."""

    status = 403
    code = "other_origin"
    says = "only Kairos's own page may send this: open it, and do it there"


class Needed(msgspec.Struct, frozen=True):
    """Credentials that a request to the operators' port needs."""

    role: Role | None  # None: nothing
    is_page: bool = False  # a browser may show it, by its user's password
    is_from_page: bool = False  # only Kairos's own page may send it


def needed(method: str, raw_path: bytes) -> Needed:
    """Decide which access a request needs. No other code decides that by the path.

    Only the path as sent matters: not the decoded one, and none that a framework derives from a URL
    or a header. For a path in any other spelling than these, changes need an admin, and reading
    needs a viewer.
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
    """Middleware that enforces roles, and records changes and refusals in the audit log.

    It admits requests only by known host names; one without a Host does not come from a browser. A
    route names what it changed in the request's state, as `changed`.
    """

    def __init__(
        self, app: ASGIApp, access: Access, names: Iterable[str], audit: AuditLog | None = None
    ) -> None:
        """Create the middleware. `names` are host names that are allowed (`cors.py`)."""
        self._app, self._access, self._audit = app, access, audit
        self._names = HostNames(name for name in names if name != ANY_HOST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = needed(scope["method"], scope["raw_path"])
        try:
            self._check_hosts(scope)
            caller = await self._admitted(scope, asked)
        except KairosError as error:
            await self._refuse(error, scope, send, is_page=asked.is_page)
            return
        scope.setdefault("state", {})["caller"] = caller
        if asked.role == "admin" and self._audit is not None:
            send = self._told(self._audit, scope, caller, send)
        await self._app(scope, receive, send)

    def _check_hosts(self, scope: Scope) -> None:
        """Check each Host. Raises UnknownHost: The name is not known."""
        for name, value in scope["headers"]:
            if name == b"host" and not self._names.has(host := value.decode("latin-1")):
                raise UnknownHost(host, setting="admin_hosts", what="the operators' routes")

    async def _admitted(self, scope: Scope, asked: "Needed") -> Caller:
        """Return who asks. Raises KairosError: The request is not allowed."""
        if asked.role is None:
            return ANONYMOUS
        if asked.is_from_page:
            _check_origin(scope)
        return await self._access.operator(_shown(scope, asked), asked.role)

    async def _refuse(self, error: KairosError, scope: Scope, send: Send, *, is_page: bool) -> None:
        if self._audit is not None:
            self._audit.log_refusal(error, None, client_host(scope), "operators")
        asks = isinstance(error, Unauthorized) and is_page
        await send_error(error, send, *([(b"www-authenticate", _ASK_FOR_KEY)] if asks else []))

    def _told(self, audit: AuditLog, scope: Scope, caller: Caller, send: Send) -> Send:
        """Return a `send` that records a change before the operator receives the answer."""

        async def tell(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                audit.log_action(
                    f"{scope['method']} {scope['path']}",
                    by=None if caller is ANONYMOUS else caller,
                    address=client_host(scope),
                    port="operators",
                    target=scope["state"].get("changed"),
                    status=message["status"],
                )
            await send(message)

        return tell


def _header(scope: Scope, name: bytes) -> str | None:
    found = (value for header, value in scope["headers"] if header == name)
    value = next(found, None)
    return None if value is None else value.decode("latin-1")


def _check_origin(scope: Scope) -> None:
    """Check that Kairos's own page sent the request.

    A browser states the page's origin, which no page can forge, and a page cannot choose the Host
    that Kairos is addressed by (`cors.py`). A form cannot send JSON, and a script of another origin
    cannot send it without a preflight, which is not answered here. Behind a proxy that terminates
    TLS the page's scheme is https, and the request's is not. Raises OtherOrigin: Another page, or
    no page, sent the request.
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
    """Return the request's credential; a browser's user enters the key as a password.

    A browser then attaches the password to all requests, even when another site's page triggers
    them. So passwords count only for the page: for reads that no other site can see, and for
    requests that no other site can have sent.
    """
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


class Decides(Protocol):
    """The balancer of this process, which decides or stands by."""

    @property
    def balancer(self) -> Balancer: ...

    @property
    def decides(self) -> bool: ...

    def now(self) -> int:
        """Return the time in µs."""


class OperatedBrain(Decides, Protocol):
    """A balancer that shows its state to operators."""

    def add_tenants(self, app: "FastAPI") -> None:
        """Add the routes that show workflows and agents of any tenant."""


def operators_front(
    brain: OperatedBrain,
    monitor: Monitor,
    fleet: Fleet,
    metrics: MetricFamilies,
    access: Access,
    *,
    names: Iterable[str],
    has_changes: bool = True,
    audit: AuditLog | None = None,
    add_pages: Callable[["FastAPI"], None] | None = None,
) -> ASGIApp:
    """Return the application of the operators' port.

    `names` are host names that requests may use, in addition to addresses (`cors.py`). `audit`
    records changes and refusals. For the rest see `build_admin`.
    """
    probes = Probes(lambda: bool(monitor.models()), metrics)

    def build() -> ASGIApp:
        from kairos.gateway.operators.admin import build_admin

        return build_admin(brain, monitor, fleet, has_changes=has_changes, add_pages=add_pages)

    return name_answers(Operators(PortFront((probes,), LateApp(build)), access, names, audit))
