"""Front of the operators' port, without the application behind it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from kairos.core import Balancer
from kairos.engines import Fleet, Monitor
from kairos.gateway.api.front import LateApp, PortFront
from kairos.gateway.api.health import MetricFamilies, Probes
from kairos.gateway.auth.access import Access
from kairos.gateway.operators.operators import Operators
from kairos.gateway.server.hosts import KnownHosts
from kairos.gateway.server.openai_errors import RequestIds
from kairos.observe import AuditLog
from kairos.request import ASGIApp

if TYPE_CHECKING:
    from fastapi import FastAPI


class Decides(Protocol):
    """The balancer of this process, which decides or stands by."""

    @property
    def balancer(self) -> Balancer: ...

    @property
    def decides(self) -> bool: ...

    def now(self) -> int:
        """Return the time in µs."""


class OperatedBrain(Decides, Protocol):
    """A balancer that shows its state to operators."""

    def add_tenants(self, app: "FastAPI") -> None:
        """Add the routes that show workflows and agents of any tenant."""


def operators_front(
    brain: OperatedBrain,
    monitor: Monitor,
    fleet: Fleet,
    metrics: MetricFamilies,
    access: Access,
    *,
    names: Iterable[str],
    has_changes: bool = True,
    audit: AuditLog | None = None,
    add_pages: Callable[["FastAPI"], None] | None = None,
) -> ASGIApp:
    """Return the application of the operators' port.

    `names` are host names that requests may use, in addition to addresses (`hosts.py`). `audit`
    records changes and refusals. For the rest see `build_admin`.
    """
    probes = Probes(lambda: bool(monitor.models()), metrics)

    def build() -> ASGIApp:
        from kairos.gateway.operators.admin import build_admin

        return build_admin(
            brain, monitor, fleet, probes, has_changes=has_changes, add_pages=add_pages
        )

    front = PortFront((probes,), LateApp(build))
    return RequestIds(KnownHosts(Operators(front, access, audit), names, audit))
