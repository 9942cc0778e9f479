"""Names of Kairos' headers, over HTTP and on the bus.

Headers that HTTP itself defines (`Content-Type`, `Authorization`, `Retry-After`, ...) are named
where they are used.
"""


class Header:
    """Header names as a client writes them."""

    REQUEST_ID = "X-Request-Id"
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
    REASON = "X-Kairos-Reason"  # of a response: the error's code
    TRACE_PARENT = "traceparent"  # W3C Trace Context
    BAGGAGE = "baggage"  # W3C Baggage
    REPLY_TO = "kairos-reply-to"  # on the bus alone: the topic for the answer


# As a server receives them: lower case, in bytes.
RAW_HEADERS = {
    name: name.lower().encode()
    for name in (
        *(Header.REQUEST_ID, Header.WORKFLOW_ID, Header.APP, Header.AGENT, Header.UPSTREAM),
        *(Header.PARENT_ID, Header.ATTEMPT, Header.STARTED_AT, Header.CLASS, Header.DEADLINE),
        *(Header.DEADLINE_MS, Header.BUDGET_CALLS, Header.BUDGET_TOKENS, Header.BUDGET_MS),
        *(Header.REASON, Header.TRACE_PARENT, Header.BAGGAGE),
    )
}

BUS_HEADERS = {
    Header.REQUEST_ID: "kairos-request-id",
    Header.WORKFLOW_ID: "kairos-msg-id",
    Header.APP: "kairos-app",
    Header.AGENT: "kairos-agent",
    Header.UPSTREAM: "kairos-upstream",
    Header.PARENT_ID: "kairos-parent",
    Header.ATTEMPT: "kairos-attempt",
    Header.STARTED_AT: "kairos-started-at",
    Header.CLASS: "kairos-class",
    Header.DEADLINE: "kairos-deadline",
    Header.BUDGET_CALLS: "kairos-budget-calls",
    Header.BUDGET_TOKENS: "kairos-budget-tokens",
    Header.BUDGET_MS: "kairos-budget-ms",
    Header.TRACE_PARENT: "traceparent",
}

# Bus headers by the field of a message's or a call's envelope that each carries.
FIELD_HEADERS = {
    "request_id": BUS_HEADERS[Header.REQUEST_ID],
    "reply_to": Header.REPLY_TO,
    "version": "kairos-version",
    "workflow_id": BUS_HEADERS[Header.WORKFLOW_ID],
    "app": BUS_HEADERS[Header.APP],
    "agent": BUS_HEADERS[Header.AGENT],
    "upstream": BUS_HEADERS[Header.UPSTREAM],
    "started_at": BUS_HEADERS[Header.STARTED_AT],
    "parent": BUS_HEADERS[Header.PARENT_ID],
    "attempt": BUS_HEADERS[Header.ATTEMPT],
    "service_class": BUS_HEADERS[Header.CLASS],
    "deadline": BUS_HEADERS[Header.DEADLINE],
    "budget_calls": BUS_HEADERS[Header.BUDGET_CALLS],
    "budget_tokens": BUS_HEADERS[Header.BUDGET_TOKENS],
    "budget_ms": BUS_HEADERS[Header.BUDGET_MS],
}
