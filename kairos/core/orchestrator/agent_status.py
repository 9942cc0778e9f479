"""Learning status of an agent, as the API shows it."""

import msgspec

from kairos.core.orchestrator.window import Window


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Learning progress of one agent, or of the pool of its app."""

    app: str
    agent: str
    samples: int
    converged: bool
    # Wasserstein distance over the mean, at the last check; None before the second check.
    distance: float | None
    checks: int  # at 1, 2, 4, ... calls
    reopened: int
    censored: int  # calls that failed or were cancelled, never learnt as short
    pooled: int = 0  # only in a pool: calls of agents that are not tracked by name


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
