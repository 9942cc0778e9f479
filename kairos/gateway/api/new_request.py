"""Creation of a `Request`, which the balancer handles, from an HTTP request and its caller."""

from kairos.core import Request, Sources
from kairos.gateway.auth.service_class import ServiceClasses
from kairos.proxy import Asked
from kairos.request import Body, Caller, Estimate, Identity, budget_of, deadline_of


def request_of(
    request_id: str,
    asked: Asked,
    body: Body,
    identity: Identity,
    caller: Caller,
    classes: ServiceClasses,
    *,
    prompt: Estimate,
    now: int,
) -> Request:
    """Return the call's request.

    Raises:
        KairosError: A header is invalid, or the caller may not use the class of service.
    """
    service_class = classes.of(asked.headers, caller)
    deadline_at = deadline_of(asked.headers, now, streams=body.stream)
    return Request(
        id=request_id,
        tenant=caller.tenant,
        workflow_id=identity.workflow_id or request_id,
        app=identity.app,
        agent=identity.agent,
        upstream=identity.upstream,
        parent_ids=identity.parent_ids,
        sources=Sources(**identity.sources),
        attempt=identity.attempt,
        key=caller.key,
        service_class=service_class,
        deadline_at=classes.deadline(service_class, deadline_at, now),
        budget=budget_of(asked.headers),
        model=body.model,
        workflow_started_at=min(identity.started_at or now, now),
        arrived_at=now,
        prompt_tokens=prompt.tokens,
        least_prompt_tokens=prompt.least,
        completion_tokens=body.completion_tokens,
        completion_limit=body.completion_limit,
        sequences=body.sequences,
        prefix=body.prefix,
        prefix_units=body.prefix_units,
    )
