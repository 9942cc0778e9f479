"""Facilities of process and machine: clock, event loop, threads, files, SQLite, children."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
