"""Stored flows, and the errors of flows and invocations."""

import re
from typing import Any

import msgspec

from kairos.core import InvalidRequest, KairosError
from kairos.workflows.compile.operators import NAME

MODEL_PREFIX = "flow/"  # of a flow's name as a model
_NAME = re.compile(NAME)


class FlowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Flow as its client sent it, with the facts found when it was checked."""

    name: str
    source: str
    is_json: bool  # else YAML
    digest: str  # of the text
    inputs: tuple[str, ...]  # columns that the flow needs
    outputs: tuple[str, ...]
    operators: int
    created_s: int  # since the Unix epoch
    changed_s: int


class FlowsOff(KairosError):
    """Flows are off in this Kairos."""

    status = 404
    code = "flows_off"
    says = (
        "flows are off in this Kairos: its operator turns them on with directory of [flows] in "
        "the settings"
    )


class NoSuchFlow(InvalidRequest):
    """The tenant has no flow of this name."""

    status = 404
    code = "flow_not_found"

    def __init__(self, name: str) -> None:
        shown = name[:64]
        super().__init__(
            f"there is no flow '{shown}': PUT /v1/flows/{shown} makes one, GET /v1/flows lists "
            "those there are"
        )


class FlowRefused(InvalidRequest):
    """The flow cannot be run, or not with these settings; the message says where and why."""

    code = "invalid_flow"


class FlowLimit(InvalidRequest):
    """The tenant has as many flows as it may have (`max_flows` of `[flows]`)."""

    status = 429
    code = "flow_limit"
    retries = True


class FlowsBusy(KairosError):
    """The tenant has as many running invocations as it may have (`max_running` of `[flows]`)."""

    status = 429
    code = "flows_busy"
    retry_after_s = 1

    def __init__(self, running: int) -> None:
        super().__init__(f"{running} invocations of flows are under way, which is the limit")


class OperatorBroke(KairosError):
    """Failure of an operator for this row; the message says which, and why.

    A retry would fail again.
    """

    status = 422
    code = "flow_failed"


def checked_name(name: str) -> str:
    """Return the name. Raises InvalidRequest: no flow can have it."""
    if _NAME.match(name) is None:
        raise InvalidRequest(
            "a flow's name begins with a letter and has letters, digits and _ alone, 64 at most",
            "name",
        )
    return name


def flow_view(record: FlowRecord, *, whole: bool) -> dict[str, Any]:
    """Return a flow as clients see it. `whole`: with its text."""
    shown: dict[str, Any] = {
        "id": record.name,
        "object": "flow",
        "model": MODEL_PREFIX + record.name,
        "created_at": record.created_s,
        "changed_at": record.changed_s,
        "inputs": record.inputs,
        "outputs": record.outputs,
        "operators": record.operators,
    }
    return shown | {"source": record.source} if whole else shown
