"""Decisions: facts in, commands out. No clock, no I/O, no randomness."""
