"""Settings of traces, which are sent to a collector by OTLP over HTTP (OpenTelemetry)."""

import re

import msgspec

_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Collector of traces, and the share of workflows that are traced.

    Keys and certificates of the collector are in the environment, as OpenTelemetry names them:
    OTEL_EXPORTER_OTLP_HEADERS and so on.
    """

    otlp_endpoint: str  # the collector's URL, as http://collector:4318; traces go to its /v1/traces
    # Share of the workflows that are traced, from 0 to 1. Calls that come with a trace context are
    # as that says.
    sample_ratio: float = 1.0
    service_name: str = "kairos"  # by which a collector tells Kairos from other services

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.otlp_endpoint):
            raise ValueError(
                "telemetry.otlp_endpoint must be an http:// or https:// URL without a query and "
                "without a password, as http://collector:4318"
            )
        if not 0 <= self.sample_ratio <= 1:
            raise ValueError("telemetry.sample_ratio must be from 0 to 1")
        if not 0 < len(self.service_name) <= 128:
            raise ValueError("telemetry.service_name must have 1 to 128 characters")

    @property
    def traces_url(self) -> str:
        return self.otlp_endpoint.rstrip("/") + "/v1/traces"
