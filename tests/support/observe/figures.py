"""Figures that are not read at once: of disks, and of messages that make no sense."""

from kairos.observe import disk_looks
from kairos.observe.left_out import left_out

__all__ = ["left_out", "look_often"]


def look_often(monkeypatch):
    """Let a service look at its disks twenty times a second."""
    monkeypatch.setattr(disk_looks, "LOOK_S", 0.05)
