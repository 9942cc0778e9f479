"""Kairos without the world: virtual time, and a stand-in for an engine."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
