"""Decisions: facts in, commands out. No clock, no I/O, no randomness."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
