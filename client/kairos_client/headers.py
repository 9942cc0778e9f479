"""Headers of a call: its identity, and an id that stays the same when it is retried."""

import uuid
from collections.abc import Mapping
from contextvars import ContextVar

from kairos_client import ends, frameworks, settings
from kairos_client.context import identity
from kairos_client.names import plain

_RETRY = "x-stainless-retry-count"  # of OpenAI's SDK: which retry it is, from 0 on

_last_id: ContextVar[str | None] = ContextVar("kairos_client_call", default=None)


def headers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to add to a call that has `given`, with names in lower case."""
    who = identity().over(frameworks.identify())
    workflow = plain(who.workflow)
    if workflow is not None:
        ends.remember_key(workflow, given)
    found = {
        "x-kairos-workflow-id": workflow,
        "x-kairos-app": plain(who.app or settings.app()),
        "x-kairos-agent": plain(who.agent),
        "x-kairos-upstream": plain(who.upstream),
        "x-kairos-deadline": None if who.deadline is None else str(who.deadline),
        **_attempt(given),
    }
    return {name: value for name, value in found.items() if value and name not in given}


def _attempt(given: Mapping[str, str]) -> dict[str, str]:
    """Return the id and the number of the attempt.

    OpenAI's SDK retries in the same task or thread.
    """
    retry = given.get(_RETRY, "0")
    name = _last_id.get() if retry != "0" else None
    if name is None:
        name = f"call-{uuid.uuid4().hex}"
        _last_id.set(name)
    number = int(retry) + 1 if retry.isdecimal() else 1
    return {"x-request-id": name, "x-kairos-attempt": str(number)}
