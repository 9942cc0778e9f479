"""What is known of an agent, as it is shown."""

import msgspec

from kairos.core.orchestrator.window import Window


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far learning has come with one agent, or with its app's pool."""

    app: str
    agent: str
    samples: int
    converged: bool
    distance: float | None  # Wasserstein, over the mean, at the last check; None: no two yet
    checks: int  # at 1, 2, 4, ... calls
    reopened: int
    censored: int  # calls that failed or were cancelled, never learnt as short
    pooled: int = 0  # the pool's: calls of names that are not tracked


def status_of(app: str, name: str, window: Window, censored: int, pooled: int = 0) -> AgentStatus:
    return AgentStatus(
        app=app,
        agent=name,
        samples=len(window),
        converged=window.converged,
        distance=window.distance,
        checks=window.checks,
        reopened=window.reopened,
        censored=censored,
        pooled=pooled,
    )
