"""What has changed in the profiles, copied, and what is published of it."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from kairos.learnt import (
    POOLED,
    AgentKey,
    AgentProfile,
    Floats,
    RemainingModel,
    distribution,
)
from kairos.orchestrator.open_workflows import OpenWorkflow, Row, rows_of
from kairos.orchestrator.remaining_model import UNTRACKED, fit
from kairos.orchestrator.window import CALL, REMAINING, STAGES, TOKENS
from kairos.workflow_tracker import FEATURES

AppKey = tuple[str, str]  # tenant, app


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

    app: AppKey
    rows: Floats  # [calls, columns of a model]; none only where there is a prior
    numbers: dict[AgentKey, int]  # in the rows, of the app's agents; of everything: of the apps
    prior: RemainingModel | None  # from before a restart

    def model(self, still_open: Sequence[Row] = ()) -> RemainingModel:
        """`still_open`: calls of workflows that have not ended, of any app."""
        names = {n: agent for (_, _, agent), n in self.numbers.items() if agent != POOLED}
        return fit(*self.app, self.rows, names, self.prior, self._rows(still_open))

    def _rows(self, still_open: Sequence[Row]) -> Floats:
        everything = self.app == (POOLED, POOLED)
        found = [
            (
                *numbers,
                math.log(max(1, remaining_us)),
                self.numbers.get((*key[:2], POOLED) if everything else key, UNTRACKED),
            )
            for key, numbers, remaining_us in still_open
            if everything or key[:2] == self.app
        ]
        return np.array(found).reshape(-1, FEATURES + 2)


class Learning(msgspec.Struct, frozen=True):
    """What has changed, copied, so that it can be worked on beside the event loop."""

    windows: list[WindowData]
    models: list[ModelData]
    forgotten: tuple[AgentKey, ...]  # agents that are not known any more
    still_open: Sequence[OpenWorkflow] = ()
    known: Mapping[AppKey, RemainingModel] = {}  # the models before

    def learn(self) -> tuple[list[AgentProfile], list[RemainingModel]]:
        """Pure, and slow: 0.2 ms for each profile, some ms for each model (`make bench`)."""
        apps = {each.app for each in self.models}
        of_all = (POOLED, POOLED) in apps
        still_open = rows_of(self.still_open, self.known, None if of_all else apps)
        return (
            [each.profile() for each in self.windows],
            [each.model(still_open) for each in self.models],
        )
