"""What a supervisor and Prometheus ask of every service."""

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import Response


def add_health(app: FastAPI, is_well: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 while it can do its work."""
        return Response(status_code=200 if is_well() else 503)

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
