"""Facilities of process and machine: clock, event loop, threads, files, SQLite, children."""
