"""What has been learnt, as it travels from the orchestrator, which learns, to the scheduler.

An agent is known by tenant, app and name; calls that name no app or agent go by the empty name.
`POOLED` stands for all agents: of an app (where an agent is not known, or the app has too many),
or, as app and tenant too, of everything.
"""

import msgspec

from kairos.model import Request

POOLED = "*"  # no identifier, so no client can claim it
QUANTILES = 64

AgentKey = tuple[str, str, str]  # tenant, app, agent


def agent_key(request: Request) -> AgentKey:
    return request.tenant, request.app or "", request.agent or ""


class Distribution(msgspec.Struct, frozen=True):
    """A sample, by its mean and `QUANTILES` ascending quantiles, at (i + 1/2) / QUANTILES."""

    mean: float
    quantiles: tuple[float, ...]


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent's calls were like: kairos paper, 4.3. Queueing and tools' time excluded."""

    tenant: str
    app: str
    agent: str
    samples: int  # calls in the window, of workflows that ended
    converged: bool
    call_us: Distribution  # execution latency of one call
    completion_tokens: Distribution
    remaining_us: Distribution  # execution latency of the workflow from that call on, included
    remaining_stages: float  # mean, that call included

    @property
    def key(self) -> AgentKey:
        return self.tenant, self.app, self.agent


class RemainingModel(msgspec.Struct, frozen=True, kw_only=True):
    """ln(remaining_us) of an app's calls, linear in what `kairos.position.features` says of a call.

    An agent that is not in `agents` is taken for an average one of the app.
    """

    tenant: str
    app: str
    samples: int
    intercept: float
    weights: tuple[float, ...]  # one per feature
    agents: dict[str, float]  # what is added for the agent
    residuals: tuple[float, ...]  # quantiles of ln(actual / predicted)


class AgentRank(msgspec.Struct, frozen=True, array_like=True):
    """How far an agent is from having nothing left to do; smaller goes first."""

    tenant: str
    app: str
    agent: str
    rank: float
