"""What has changed in the profiles, copied, and what is published of it."""

import msgspec
import numpy as np

from kairos.learnt import AgentKey, AgentProfile, RemainingModel
from kairos.orchestrator.remaining_model import fit
from kairos.orchestrator.window import CALL, REMAINING, STAGES, TOKENS, Floats, distribution


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
    rows: Floats  # [calls, columns of a model]
    names: dict[int, str]  # of the app's agents, by their number in the rows
    prior: RemainingModel | None  # from before a restart

    def model(self, of_everything: RemainingModel | None) -> RemainingModel | None:
        """None while there is nothing to learn from."""
        prior = self.prior or of_everything
        if prior is None and not len(self.rows):
            return None
        return fit(*self.app, self.rows, self.names, prior)


class Learning(msgspec.Struct, frozen=True):
    """What has changed, copied, so that it can be worked on beside the event loop."""

    windows: list[WindowData]
    everything: ModelData | None  # None: no model is due
    apps: list[ModelData]
    forgotten: tuple[AgentKey, ...]  # agents that are not known any more

    def learn(self) -> tuple[list[AgentProfile], list[RemainingModel]]:
        """Pure, and slow: 0.2 ms for each profile, some ms for each model (`make bench`)."""
        profiles = [window.profile() for window in self.windows]
        if self.everything is None:
            return profiles, []
        of_everything = self.everything.model(None)
        models = [of_everything, *(app.model(of_everything) for app in self.apps)]
        return profiles, [model for model in models if model is not None]
