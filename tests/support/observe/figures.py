"""Figures that are not read at once: of disks, and of messages that make no sense."""

from kairos.host import sqlite_file
from kairos.observe.left_out import left_out

__all__ = ["left_out", "look_often"]


def look_often(monkeypatch):
    """Let a service look at its disks twenty times a second."""
    monkeypatch.setattr(sqlite_file, "LOOK_S", 0.05)
