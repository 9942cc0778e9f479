"""The names of the headers that more than one module reads or writes: over HTTP as they are written
and as a server sees them, and what the same is called on the bus.

Those that HTTP defines for itself (`Content-Type`, `Authorization`, `Retry-After`, ...) stand where
they are used.
"""

REQUEST_ID = "X-Request-Id"  # the call's name
WORKFLOW_ID = "X-Kairos-Workflow-Id"
APP = "X-Kairos-App"
AGENT = "X-Kairos-Agent"
UPSTREAM = "X-Kairos-Upstream"
PARENT_ID = "X-Kairos-Parent-Id"
ATTEMPT = "X-Kairos-Attempt"
STARTED_AT = "X-Kairos-Started-At"
CLASS = "X-Kairos-Class"
DEADLINE = "X-Kairos-Deadline"
DEADLINE_MS = "X-Kairos-Deadline-Ms"
BUDGET_CALLS = "X-Kairos-Budget-Calls"
BUDGET_TOKENS = "X-Kairos-Budget-Tokens"
BUDGET_MS = "X-Kairos-Budget-Ms"
REASON = "X-Kairos-Reason"  # of an answer: the code of the error
TRACE_PARENT = "traceparent"  # W3C trace context, and W3C baggage
BAGGAGE = "baggage"

RAW = {
    name: name.lower().encode()
    for name in (
        *(REQUEST_ID, WORKFLOW_ID, APP, AGENT, UPSTREAM, PARENT_ID, ATTEMPT, STARTED_AT),
        *(CLASS, DEADLINE, DEADLINE_MS, BUDGET_CALLS, BUDGET_TOKENS, BUDGET_MS, REASON),
        *(TRACE_PARENT, BAGGAGE),
    )
}

ON_BUS = {
    REQUEST_ID: "kairos-request-id",
    WORKFLOW_ID: "kairos-msg-id",
    APP: "kairos-app",
    AGENT: "kairos-agent",
    UPSTREAM: "kairos-upstream",
    PARENT_ID: "kairos-parent",
    ATTEMPT: "kairos-attempt",
    STARTED_AT: "kairos-started-at",
    CLASS: "kairos-class",
    DEADLINE: "kairos-deadline",
    BUDGET_CALLS: "kairos-budget-calls",
    BUDGET_TOKENS: "kairos-budget-tokens",
    BUDGET_MS: "kairos-budget-ms",
    TRACE_PARENT: "traceparent",
}
REPLY_TO = "kairos-reply-to"  # on the bus: the topic on which the answer is awaited

OF_FIELDS = {  # of a message's envelope, and of a call's
    "request_id": ON_BUS[REQUEST_ID],
    "reply_to": REPLY_TO,
    "version": "kairos-version",
    "workflow_id": ON_BUS[WORKFLOW_ID],
    "app": ON_BUS[APP],
    "agent": ON_BUS[AGENT],
    "upstream": ON_BUS[UPSTREAM],
    "started_at": ON_BUS[STARTED_AT],
    "parent": ON_BUS[PARENT_ID],
    "attempt": ON_BUS[ATTEMPT],
    "service_class": ON_BUS[CLASS],
    "deadline": ON_BUS[DEADLINE],
    "budget_calls": ON_BUS[BUDGET_CALLS],
    "budget_tokens": ON_BUS[BUDGET_TOKENS],
    "budget_ms": ON_BUS[BUDGET_MS],
}
