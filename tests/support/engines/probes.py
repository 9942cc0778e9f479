"""Probes of engines, as often as a test needs them."""

from kairos.engines import monitor

NEVER_S = 1000


def probe_every(monkeypatch, interval_s=NEVER_S):
    """Let a service probe its engines so often; by default once, as it begins."""
    monkeypatch.setattr(monitor, "INTERVAL_S", interval_s)
