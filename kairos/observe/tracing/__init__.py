"""OpenTelemetry traces of calls and workflows."""
