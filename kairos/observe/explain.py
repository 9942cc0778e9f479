"""View of a workflow, from a running service or from its log."""

from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec

from kairos.core import MAX_CALLS, Arrived, Orchestrator, Record, SetupError, Tick
from kairos.host import context_of
from kairos.observe.costs import Costs, costs_of
from kairos.observe.fact_log import read_facts
from kairos.observe.views import WorkflowView, workflow_snapshot, workflow_view
from kairos.settings import TlsFiles

_TIMEOUT_S = 30


async def explain_from_service(
    url: str, key: str | None, workflow_id: str, files: TlsFiles | None = None
) -> WorkflowView:
    """Fetch the view of a workflow from a running Kairos.

    Args:
        url: address of the service.
        key: API key, if any.
        workflow_id: the workflow.
        files: see `context_of`.

    Raises:
        SetupError: nothing answers there, or the answer is an error; the message has it.
    """
    path = f"{url.rstrip('/').removesuffix('/v1')}/v1/workflows/{quote(workflow_id, safe='')}"
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    # True verifies certificates too, and is unused without TLS.
    tls = context_of(url, files or TlsFiles()) or True
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(path, params={"limit": MAX_CALLS}, ssl=tls) as response,
        ):
            status, content = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise SetupError(f"no Kairos answers at {url}: {error or type(error).__name__}") from None
    try:
        if status == 200:
            return msgspec.json.decode(content, type=WorkflowView)
        said = msgspec.json.decode(content, type=_Refusal).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = "the server is not a Kairos"
    raise SetupError(f"{url} answered {status}: {said}")


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def explain_from_log(directory: Path, tenant: str | None, workflow_id: str) -> WorkflowView:
    """Return the view of a workflow from the facts in a log. If an id was reused: the last one.

    Raises:
        SetupError: the log has no such workflow; or several tenants have one, and none is named.
        InvalidFile: a line of the log is invalid.
    """
    if not directory.is_dir():
        raise SetupError(f"there is no directory {directory}")
    tenants: set[str] = set()
    orchestrator, at = Orchestrator(), 0
    for record in read_facts(directory):
        at, event = record.at, record.event
        if isinstance(event, Arrived):
            request = event.request
            if request.workflow_id == workflow_id and tenant in (None, request.tenant):
                tenants.add(request.tenant)
            else:
                event = Tick()  # so that facts about other requests have no effect
        orchestrator.observe(Record(at, event, record.commands))
    if len(tenants) > 1:
        named = ", ".join(sorted(tenants))
        raise SetupError(f"several tenants have a workflow '{workflow_id}': name one of {named}")
    workflow = orchestrator.workflow(tenants.pop(), workflow_id) if tenants else None
    if workflow is None:
        raise SetupError(f"the log in {directory} has no workflow '{workflow_id}'")
    return workflow_view(workflow_snapshot(workflow, at), 0, MAX_CALLS)


def read_costs(directory: Path, view: WorkflowView) -> Costs:
    """Return the costs of the workflow's calls on each instance (`costs.py`)."""
    return costs_of(read_facts(directory), view.tenant, view.id)
