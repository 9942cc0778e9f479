"""Traces of calls and workflows, for OpenTelemetry."""
