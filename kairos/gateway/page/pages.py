"""The operators' page of a process: its parts, and what runs for it in the background."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Protocol

import msgspec

from kairos.core import FactSink, Orchestrator
from kairos.engines import Fleet
from kairos.gateway.operators.operators import Decides
from kairos.gateway.page.acts import Acts
from kairos.gateway.page.agents import Agents
from kairos.gateway.page.gains import Gains
from kairos.gateway.page.now import Now
from kairos.gateway.page.past import Past
from kairos.gateway.page.watch import Watch
from kairos.gateway.page.workflows import FollowedElsewhere, Workflows
from kairos.observe import Telemetry
from kairos.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI


class Deciding(Decides, FactSink, Protocol):
    """A balancer in this process that also takes facts."""


class OperatorsPage:
    """The page of one process. Run its `background` concurrently with the server."""

    def __init__(
        self,
        brain: Deciding,
        fleet: Fleet,
        telemetry: Telemetry,
        orchestrator: Orchestrator | None,
        settings: Settings,
        *,
        changes_engines: bool = True,
    ) -> None:
        """Create the page. `orchestrator`: None where another process follows the workflows."""

        def followed() -> Orchestrator:
            if orchestrator is None:
                raise FollowedElsewhere
            return orchestrator

        now = Now(brain, fleet, telemetry, orchestrator)
        self.now, self.watch = now, Watch(lambda: msgspec.json.encode(now.view()))
        self.workflows = Workflows(brain, followed)
        self.agents = Agents(brain.now, lambda: brain.balancer.estimates, followed)
        self.fleet, self.gains, self.past = fleet, Gains(settings), Past(settings.log_dir)
        self.acts = Acts(
            *(brain, orchestrator),
            is_audited=settings.audit_log is not None,
            changes_engines=changes_engines,
        )

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self.watch.run(), self.gains.run(), self.agents.run()]

    def add_to(self, app: "FastAPI") -> None:
        from kairos.gateway.page.routes import add_page

        add_page(app, self)
