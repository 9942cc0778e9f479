"""A call's way to its engine and back: bytes, streams, failures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
