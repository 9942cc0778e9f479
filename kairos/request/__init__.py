"""Facts about a request before it is queued: its caller, its body, its budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
