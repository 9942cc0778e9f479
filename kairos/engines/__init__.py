"""The engines behind Kairos: which there are, what they say of themselves, how well they are."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
