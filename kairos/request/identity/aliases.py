"""Identity from headers and fields that agents and frameworks already send.

Coding agents number their *sessions*, chains of calls of one agent: a session that names a parent
belongs to the parent's workflow, and so do all its descendants. Values that are not identifiers are
ignored, since they were not meant for Kairos. The meaning of body fields differs between senders (a
`prompt_cache_key` may be the same for all users), so the settings name the fields to use.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.core import SharedLru
from kairos.request.identity.conversation import decode_foreign
from kairos.request.identity.identity import (
    Field,
    Headers,
    Identity,
    identifier_of,
    valid_identifier,
)

BODY_FIELDS = ("user", "prompt_cache_key", "metadata")
_MAX_SESSIONS = 65_536  # whose workflow is remembered


_anything = msgspec.json.Decoder()


class _Alias(msgspec.Struct, frozen=True):
    """Headers of one kind of agent."""

    session: bytes
    parent: bytes | None = None
    agent: bytes | None = None  # a name of the role, not of one that plays it


# The first that is there counts. As the agents' sources and Dynamo's documentation have them.
_ALIASES = (
    _Alias(b"x-dynamo-session-id", b"x-dynamo-parent-session-id"),
    # One session for all of its agents, whose ids say who plays which role.
    _Alias(b"x-claude-code-session-id", agent=b"x-claude-code-agent-type"),
    _Alias(b"thread-id", b"x-codex-parent-thread-id", b"x-openai-subagent"),
    _Alias(b"x-session-id", b"x-parent-session-id"),
    _Alias(b"x-litellm-trace-id"),
)
_SESSIONS = frozenset(alias.session for alias in _ALIASES)
_FINAL = b"x-dynamo-session-final"
# Which of a session's agents calls, by an id of each run, and which one started that; without the
# second it was the main agent, which has no id.
_SESSION, _RUN = b"x-claude-code-session-id", b"x-claude-code-agent-id"
_PARENT_RUN = b"x-claude-code-parent-agent-id"


class Aliases:
    """Memory of the workflows that sessions belong to."""

    def __init__(self, body_fields: Mapping[Field, str] = {}) -> None:
        """Create it.

        `body_fields` maps identity fields to paths in the body, such as `metadata.run`.
        """
        self._paths: list[tuple[Field, list[str]]] = [
            (field, path.split(".")) for field, path in body_fields.items()
        ]
        # By tenant and session.
        self._workflows: SharedLru[tuple[str, str], str] = SharedLru(_MAX_SESSIONS)
        # By tenant, session and run: the name that its agent has.
        self._agents: SharedLru[tuple[str, str, str], str] = SharedLru(_MAX_SESSIONS)

    def add(self, identity: Identity, headers: Headers, tenant: str) -> None:
        if _SESSIONS.isdisjoint(headers):
            return
        for alias in _ALIASES:
            session = valid_identifier(headers.get(alias.session))
            if session is not None:
                parent = valid_identifier(headers.get(alias.parent)) if alias.parent else None
                workflow_id = self._workflow(tenant, session, parent)
                identity.learn("workflow_id", workflow_id, "alias")
                if alias.agent is not None:
                    identity.learn("agent", valid_identifier(headers.get(alias.agent)), "alias")
                is_last = headers.get(_FINAL, b"").strip().lower() in (b"true", b"1")
                identity.ends_workflow = is_last and identity.workflow_id == session
                return

    def _workflow(self, tenant: str, session: str, parent: str | None) -> str:
        known = self._workflows

        def of_parent() -> str:
            return session if parent is None else known.get((tenant, parent)) or parent

        return known.recall(tenant, (tenant, session), of_parent)

    def add_caller(self, identity: Identity, headers: Headers, tenant: str) -> None:
        """Remember the agent of a session's run; infer the upstream from its parent run."""
        session = valid_identifier(headers.get(_SESSION))
        if session is None or identity.agent is None:
            return
        run = valid_identifier(headers.get(_RUN)) or ""
        key = tenant, session, run
        if key in self._agents:
            self._agents.touch(tenant, key)
        else:
            self._agents.put(tenant, key, identity.agent)
            if run and identity.upstream is None:
                started_by = tenant, session, valid_identifier(headers.get(_PARENT_RUN)) or ""
                identity.learn("upstream", self._agents.get(started_by), "alias")

    def add_from_body(self, identity: Identity, told: Mapping[str, msgspec.Raw]) -> None:
        """Learn from the body's fields. `told` has the present ones among `BODY_FIELDS`."""
        for field, (name, *members) in self._paths:
            if name in told:
                identity.learn(field, _identifier_at(told[name], members), "alias")


def _identifier_at(told: msgspec.Raw, members: Sequence[str]) -> str | None:
    value = decode_foreign(_anything, told)
    for name in members:
        value = value.get(name) if isinstance(value, dict) else None
    return identifier_of(str(value)) if isinstance(value, str | int) else None
