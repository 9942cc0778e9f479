"""Routes that supervisors and Prometheus poll on every service: `/health` and `/metrics`."""

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kairos.gateway.server.openai_errors import send_error, send_whole
from kairos.request import Receive, RouteRefused, Scope, Send

_ALLOWED = "GET, HEAD, OPTIONS"

MetricFamilies = Callable[[], Iterable[Metric]]


class _Families(Collector):
    def __init__(self, families: MetricFamilies) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


class Probes:
    """`RouteTaker` for `/health` and `/metrics`."""

    def __init__(self, is_well: Callable[[], bool], metrics: MetricFamilies) -> None:
        """Create the routes. `is_well` returns whether the process can do its work."""
        self._is_well, self._families = is_well, _Families(metrics)

    def takes(self, scope: Scope) -> bool:
        """See `RouteTaker`."""
        return scope["path"] in ("/health", "/metrics")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See `RouteTaker`."""
        method, path = scope["method"], scope["path"]
        if method != "GET":
            await send_error(
                RouteRefused(405, f"there is no {method} {path!r} here", _ALLOWED), send
            )
        elif path == "/health":
            await send_whole(send, 200 if self._is_well() else 503, b"")
        else:
            accepted = (value for name, value in scope["headers"] if name == b"accept")
            content, kind = self._figures(next(accepted, b"").decode("latin-1"))
            await send_whole(send, 200, content, [(b"content-type", kind.encode())])

    def _figures(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type: OpenMetrics if accepted, else text."""
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # the version is not a number
            encode, kind = choose_encoder("")
        return encode(self._families), kind
