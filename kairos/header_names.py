"""The names of Kairos's own HTTP headers: as they are written, and as a server sees them."""

WORKFLOW_ID = "X-Kairos-Workflow-Id"
APP = "X-Kairos-App"
AGENT = "X-Kairos-Agent"
UPSTREAM = "X-Kairos-Upstream"
PARENT_ID = "X-Kairos-Parent-Id"
ATTEMPT = "X-Kairos-Attempt"
STARTED_AT = "X-Kairos-Started-At"
DEADLINE = "X-Kairos-Deadline"
DEADLINE_MS = "X-Kairos-Deadline-Ms"
BUDGET_CALLS = "X-Kairos-Budget-Calls"
BUDGET_TOKENS = "X-Kairos-Budget-Tokens"
BUDGET_MS = "X-Kairos-Budget-Ms"
REASON = "X-Kairos-Reason"  # of an answer: the code of the error

RAW = {
    name: name.lower().encode()
    for name in (
        *(WORKFLOW_ID, APP, AGENT, UPSTREAM, PARENT_ID, ATTEMPT, STARTED_AT),
        *(DEADLINE, DEADLINE_MS, BUDGET_CALLS, BUDGET_TOKENS, BUDGET_MS, REASON),
    )
}
