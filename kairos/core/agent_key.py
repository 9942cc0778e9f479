"""Key that identifies an agent."""

from kairos.core.model import Request

AgentKey = tuple[str, str, str]  # tenant, app, agent


def agent_key_of(request: Request) -> AgentKey:
    return request.tenant, request.app or "", request.agent or ""
