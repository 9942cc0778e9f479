"""What a supervisor and Prometheus ask of every service."""

from collections.abc import Callable, Iterable

from fastapi import FastAPI
from fastapi.requests import Request
from fastapi.responses import Response
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

MetricFamilies = Callable[[], Iterable[Metric]]


class _Families(Collector):
    def __init__(self, families: MetricFamilies) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def add_health(app: FastAPI, is_well: Callable[[], bool], metrics: MetricFamilies) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 while it can do its work."""
        return Response(status_code=200 if is_well() else 503)

    @app.get("/metrics")
    async def prometheus(request: Request) -> Response:
        """As text; as OpenMetrics, which has exemplars, for those that ask for it."""
        try:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # the version is no number
            encode, kind = choose_encoder("")
        return Response(encode(_Families(metrics)), media_type=kind)
