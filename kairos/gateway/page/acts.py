"""Actions of an admin on the page: routes below `ACT`.

`operators.py` checks that the page's own script sends the request, and that the user has the role.

Every action must be recorded: without an audit log all are refused, and also where no key or token
has a role, since then it is unknown who acts.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kairos.core import (
    IDENTIFIER_PATTERN,
    FactSink,
    InvalidRequest,
    KairosError,
    Orchestrator,
    WorkflowEnded,
    WorkflowNotFound,
)
from kairos.engines import Fleet
from kairos.gateway.operators.operators import ACT
from kairos.gateway.page.assets import json_response
from kairos.request import ANONYMOUS, Caller

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

_LIMIT_BYTES = 16 << 10
_IDENTIFIER, _TENANT = re.compile(IDENTIFIER_PATTERN), 128  # characters
T = TypeVar("T")


class Reread(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a reload of the settings."""

    changed: list[str]
    needs_restart: list[str]  # differ, and stay as they were
    problem: str | None  # why all stays as it was


class MayAct(msgspec.Struct, frozen=True, kw_only=True):
    """The user, and the actions allowed on this page: the JSON of `/ui/data/me`."""

    name: str | None
    may_act: bool
    why_not: str | None
    may_reload: bool
    may_change_engines: bool


class CannotAct(KairosError):
    """The user may only look, or this process cannot perform the action."""

    status = 403
    code = "cannot_act"


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class _Workflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    id: str


class Acts:
    """Actions of the page.

    `reload` is set once settings can be reloaded; None: not by this process.
    """

    def __init__(
        self,
        fleet: Fleet,
        told: FactSink,
        orchestrator: Orchestrator | None,
        *,
        is_audited: bool,
        changes_engines: bool,
    ) -> None:
        """Create the actions.

        `changes_engines` is false where the settings of all processes of a pool name the engines.
        """
        self._fleet, self._told, self._orchestrator = fleet, told, orchestrator
        self._is_audited, self._changes_engines = is_audited, changes_engines
        self.reload: Callable[[], Reread] | None = None

    def me(self, caller: Caller) -> MayAct:
        why_not = self._why_not(caller)
        return MayAct(
            name=None if caller is ANONYMOUS else caller.name,
            may_act=why_not is None,
            why_not=why_not,
            may_reload=self.reload is not None,
            may_change_engines=why_not is None and self._changes_engines,
        )

    def _why_not(self, caller: Caller) -> str | None:
        if caller is ANONYMOUS:
            return "read-only: no key has a role; create an admin key (kairos keys, or [[key]])"
        if "admin" not in caller.roles:
            return "read-only: this needs a key of role admin"
        if not self._is_audited:
            return "read-only: actions must be recorded; set audit_log"
        return None

    def check(self, request: "Request") -> None:
        """Check that the user may act. Raises CannotAct: The user may not; the text says why."""
        why_not = self._why_not(request.state.caller)
        if why_not is not None:
            raise CannotAct(why_not)

    def _check_engines(self, request: "Request") -> None:
        self.check(request)
        if not self._changes_engines:
            raise CannotAct(
                "a pool's engines are defined in the settings of all its processes: change them "
                "there, and reload each process"
            )

    def cancel(self, named: _Workflow) -> None:
        """Cancel a workflow.

        Raises:
            WorkflowNotFound: No workflow with this id is known here, or can exist.
        """
        if not _IDENTIFIER.match(named.id) or len(named.tenant) > _TENANT:
            raise WorkflowNotFound(named.id)
        if self._orchestrator is not None:
            workflow = self._orchestrator.workflow(named.tenant, named.id)
            if workflow is None:
                raise WorkflowNotFound(named.id)
            if workflow.ended_at is not None:
                raise InvalidRequest(f"the workflow {named.id!r} has ended already")
        self._told.feed(WorkflowEnded(named.tenant, named.id, cancelled=True))

    def add_to(self, app: "FastAPI") -> None:
        from fastapi import Request
        from fastapi.responses import Response

        @app.get("/ui/data/me")
        async def me(request: Request) -> Response:
            """Return the user, and whether they may act."""
            return json_response(self.me(request.state.caller))

        self._add_engines(app)

        @app.post(f"{ACT}cancel")
        async def cancel(request: Request) -> Response:
            self.check(request)
            named = await read_said(request, _Workflow)
            request.state.changed = f"{named.tenant} {named.id}"
            self.cancel(named)
            return json_response({"id": named.id})

        @app.post(f"{ACT}reload")
        async def reload(request: Request) -> Response:
            """Reload the settings, as on SIGHUP."""
            self.check(request)
            if self.reload is None:
                raise CannotAct("this process cannot reload; send SIGHUP to the main process")
            return json_response(self.reload())

    def _add_engines(self, app: "FastAPI") -> None:
        from fastapi import Request
        from fastapi.responses import Response

        from kairos.gateway.operators.instances import read_engine

        @app.get("/ui/data/engines")
        async def engines() -> Response:
            """Return each engine, as `/admin/instances` does."""
            return json_response({"instances": self._fleet.views()})

        @app.post(f"{ACT}add")
        async def add(request: Request) -> Response:
            """Add an engine, or use a draining one again."""
            self._check_engines(request)
            engine = await read_engine(request)
            request.state.changed = engine.id
            return json_response(self._fleet.add(engine))

        @app.post(f"{ACT}drain")
        async def drain(request: Request) -> Response:
            """Drain an engine: it gets no new calls, and is removed after its last call."""
            self._check_engines(request)
            named = await read_said(request, _Named)
            request.state.changed = named.id
            return json_response(self._fleet.drain(named.id))


async def read_said(request: "Request", kind: type[T]) -> T:
    """Parse a request's body. Raises InvalidRequest: The body is malformed."""
    from kairos.gateway.server.small_body import small_body

    body = await small_body(request, _LIMIT_BYTES)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the page and Kairos have different versions: {error}") from None
