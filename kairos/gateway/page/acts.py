"""Actions of an admin on the page, at the routes below `ACT`.

`operators.py` checks that the page's own script sends the request, and that the user has the role.

Every action must be recorded: without an audit log all are refused, and also where no key or token
has a role, since then it is unknown who acts.
"""

import re
from collections.abc import Callable

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
from kairos.request import ANONYMOUS, Caller

_IDENTIFIER, _TENANT = re.compile(IDENTIFIER_PATTERN), 128  # characters


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


class NamedWorkflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    id: str


class Acts:
    """Actions of the page.

    `reload` is set once settings can be reloaded; None: not by this process.
    """

    def __init__(
        self,
        told: FactSink,
        orchestrator: Orchestrator | None,
        *,
        is_audited: bool,
        changes_engines: bool,
    ) -> None:
        """Create the actions.

        `changes_engines` is false where the settings of all processes of a pool name the engines.
        """
        self._told, self._orchestrator = told, orchestrator
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

    def check(self, caller: Caller, *, engines: bool = False) -> None:
        """Check that the user may act, or change `engines`.

        Raises CannotAct: The user may not; the text says why.
        """
        why_not = self._why_not(caller)
        if why_not is None and engines and not self._changes_engines:
            why_not = (
                "a pool's engines are defined in the settings of all its processes: change them "
                "there, and reload each process"
            )
        if why_not is not None:
            raise CannotAct(why_not)

    def cancel(self, named: NamedWorkflow) -> None:
        """Cancel a workflow.

        Raises WorkflowNotFound: No workflow with this id is known here, or can exist.
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
