"""What has changed in the profiles, copied, and what is published of it."""

import msgspec
import numpy as np

from kairos.learnt import AgentKey, AgentProfile, Floats, RemainingModel, distribution
from kairos.orchestrator.remaining_model import fit
from kairos.orchestrator.window import CALL, REMAINING, STAGES, TOKENS


class WindowData(msgspec.Struct, frozen=True):
    """The calls of an agent, or of a pool."""

    key: AgentKey
    rows: Floats  # [calls, columns of a window]
    converged: bool

    def profile(self) -> AgentProfile:
        tenant, app, agent = self.key
        tokens = self.rows[:, TOKENS]
        told = tokens[~np.isnan(tokens)]
        return AgentProfile(
            tenant=tenant,
            app=app,
            agent=agent,
            samples=len(self.rows),
            converged=self.converged,
            call_us=distribution(self.rows[:, CALL]),
            completion_tokens=distribution(told) if len(told) else None,
            remaining_us=distribution(self.rows[:, REMAINING]),
            remaining_stages=float(self.rows[:, STAGES].mean(dtype=np.float64)),
        )


class ModelData(msgspec.Struct, frozen=True):
    """The calls of an app, or of everything, for its model."""

    app: tuple[str, str]  # tenant, app
    rows: Floats  # [calls, columns of a model]; none only where there is a prior
    names: dict[int, str]  # of the app's agents, by their number in the rows
    prior: RemainingModel | None  # from before a restart

    def model(self) -> RemainingModel:
        return fit(*self.app, self.rows, self.names, self.prior)


class Learning(msgspec.Struct, frozen=True):
    """What has changed, copied, so that it can be worked on beside the event loop."""

    windows: list[WindowData]
    models: list[ModelData]
    forgotten: tuple[AgentKey, ...]  # agents that are not known any more

    def learn(self) -> tuple[list[AgentProfile], list[RemainingModel]]:
        """Pure, and slow: 0.2 ms for each profile, some ms for each model (`make bench`)."""
        return [each.profile() for each in self.windows], [each.model() for each in self.models]
