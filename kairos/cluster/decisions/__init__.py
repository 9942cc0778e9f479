"""Decisions of one process on calls that others perform, however the two talk to each other."""
