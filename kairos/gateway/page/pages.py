"""The operators' page of a process: its parts, and what runs for it in the background."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from kairos.core import FactSink, Orchestrator, Unavailable
from kairos.engines import Fleet
from kairos.gateway.operators.operators import Decides
from kairos.gateway.page.acts import Acts
from kairos.gateway.page.agents import Agents
from kairos.gateway.page.gains import Gains
from kairos.gateway.page.now import Now
from kairos.gateway.page.past import Past
from kairos.gateway.page.workflows import FollowedElsewhere, Workflows
from kairos.observe import Telemetry
from kairos.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI


logger = logging.getLogger(__name__)

PERIOD_S = 0.8  # so that what is seen is no older than a second
MAX_VIEWERS = 100


class TooManyViewers(Unavailable):
    """The maximum number of pages is open."""

    code = "too_many_viewers"
    says = f"{MAX_VIEWERS} pages are open already: close one, and load this again"


class Watch:
    """Live view: one snapshot every `PERIOD_S` for all viewers, while there are any.

    `run` it until cancelled.
    """

    def __init__(self, take: Callable[[], bytes]) -> None:
        self._take = take
        self._viewers = 0
        self._wanted = asyncio.Event()
        self._next = asyncio.Event()  # another each time
        self._latest: bytes | None = None  # None: nobody viewed when it was due
        self._is_over = False

    async def run(self) -> None:
        """Take snapshots. An error in one is logged, and nothing else."""
        try:
            while True:
                await self._wanted.wait()
                try:
                    self._tell(self._take())
                except Exception:
                    logger.exception("the operators' page is not updated: an error in Kairos")
                await asyncio.sleep(PERIOD_S)
        finally:
            self._is_over = True
            self._tell(None)

    def check(self) -> None:
        """Check that one more viewer is allowed. Raises TooManyViewers: The limit is reached."""
        if self._viewers >= MAX_VIEWERS:
            raise TooManyViewers

    async def pictures(self) -> AsyncIterator[bytes]:
        """Yield the latest snapshot, then each new one, until `run` ends.

        A slow viewer misses some.
        """
        with self._viewing():
            latest = self._latest
            while not self._is_over:
                following = self._next
                if latest is not None:
                    yield latest
                if following is self._next:
                    await following.wait()
                latest = self._latest

    @contextlib.contextmanager
    def _viewing(self) -> Iterator[None]:
        self._viewers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._wanted.clear()
                self._latest = None

    def _tell(self, picture: bytes | None) -> None:
        self._latest = picture
        told, self._next = self._next, asyncio.Event()
        told.set()


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
            brain,
            orchestrator,
            is_audited=settings.audit_log is not None,
            changes_engines=changes_engines,
        )

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self.watch.run(), self.gains.run(), self.agents.run()]

    def add_to(self, app: "FastAPI") -> None:
        from kairos.gateway.page.routes import add_page

        add_page(app, self)
