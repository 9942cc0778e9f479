"""Snapshot of changed profiles, and the computation of what is published from it."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from kairos.core.agent_key import AgentKey
from kairos.core.learnt import (
    POOLED_AGENT,
    AgentProfile,
    Floats,
    JoinPlace,
    RemainingModel,
    distribution,
)
from kairos.core.orchestrator.open_workflows import OpenCalls, OpenWorkflow, rows_of
from kairos.core.orchestrator.remaining_model import UNTRACKED, fit
from kairos.core.orchestrator.window import CALL, REMAINING, STAGES, TOKENS

AppKey = tuple[str, str]  # tenant, app


class WindowData(msgspec.Struct, frozen=True):
    """Recent calls of an agent, or of a pool."""

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
    """Recent calls of an app, a tenant or everything, as input of its model."""

    app: AppKey
    rows: Floats  # [calls, columns of a model]; may be empty only if there is a prior
    # Group numbers used in the rows: of the app's agents, or, for a tenant or everything, of apps.
    numbers: dict[AgentKey, int]
    prior: RemainingModel | None  # from before a restart

    def model(self, still_open: OpenCalls | None = None) -> RemainingModel:
        """Fit the model. `still_open` are calls of workflows that have not ended, of any app."""
        names = {n: agent for (_, _, agent), n in self.numbers.items() if agent != POOLED_AGENT}
        found = None if still_open is None else still_open.of(self._groups(still_open.keys))
        return fit(*self.app, self.rows, names, self.prior, found)

    def _groups(self, keys: Sequence[AgentKey]) -> dict[int, int]:
        """Return, by index in `keys`, the group number of each key that belongs to this app."""
        number_of = self.numbers.get
        if self.app == (POOLED_AGENT, POOLED_AGENT):
            groups = [number_of((key[0], key[1], POOLED_AGENT), UNTRACKED) for key in keys]
            return dict(enumerate(groups))
        tenant, app = self.app
        if app == POOLED_AGENT:
            return {
                place: number_of((tenant, key[1], POOLED_AGENT), UNTRACKED)
                for place, key in enumerate(keys)
                if key[0] == tenant
            }
        return {
            place: number_of(key, UNTRACKED)
            for place, key in enumerate(keys)
            if key[1] == app and key[0] == tenant
        }


class Learning(msgspec.Struct, frozen=True):
    """A copy of all that changed, so that it can be processed off the event loop."""

    windows: list[WindowData]
    models: list[ModelData]
    forgotten: tuple[AgentKey, ...]  # agents that were evicted
    still_open: Sequence[OpenWorkflow] = ()
    known: Mapping[AppKey, RemainingModel] = {}  # the models published before
    joins: tuple[JoinPlace, ...] = ()

    def learn(self) -> tuple[list[AgentProfile], list[RemainingModel]]:
        """Compute profiles and models; pure, but slow.

        Takes 0.2 ms for each profile and some ms for each model (`make bench`).
        """
        apps = {each.app for each in self.models}
        of_all = any(app == POOLED_AGENT for _, app in apps)
        rows = rows_of(self.still_open, self.known, None if of_all else apps)
        still_open = OpenCalls(rows)
        return (
            [each.profile() for each in self.windows],
            [each.model(still_open) for each in self.models],
        )
