"""Routes that supervisors and Prometheus poll on every service: `/health` and `/metrics`."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kairos.gateway.server.openai_errors import send_whole
from kairos.request import Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import FastAPI

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
        return scope["method"] == "GET" and scope["path"] in ("/health", "/metrics")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See `RouteTaker`."""
        if scope["path"] == "/health":
            await send_whole(send, self.status(), b"")
            return
        accepted = (value for name, value in scope["headers"] if name == b"accept")
        content, kind = self.figures(next(accepted, b"").decode("latin-1"))
        await send_whole(send, 200, content, [(b"content-type", kind.encode())])

    def add_to(self, app: "FastAPI") -> None:
        """Add the routes to an application, which describes them and refuses other methods."""
        from fastapi.requests import Request
        from fastapi.responses import Response

        @app.get("/health")
        async def health() -> Response:
            """Return 200 while the process can do its work, else 503."""
            return Response(status_code=self.status())

        @app.get("/metrics")
        async def prometheus(request: Request) -> Response:
            """Return the metrics as text, or as OpenMetrics if the client accepts it."""
            content, kind = self.figures(request.headers.get("accept", ""))
            return Response(content, media_type=kind)

    def status(self) -> int:
        return 200 if self._is_well() else 503

    def figures(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type: OpenMetrics if accepted, else text."""
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # the version is not a number
            encode, kind = choose_encoder("")
        return encode(self._families), kind
