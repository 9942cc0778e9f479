"""Flows that clients keep here, and invoke for one row at a time."""
