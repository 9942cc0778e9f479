"""Kairos without the world: virtual time, and a stand-in for an engine."""
