"""Decisions and learning in the process that also serves; what was learnt, on disk."""
