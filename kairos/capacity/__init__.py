"""Planning of hardware: types, placement and numbers of engines. Pure: numbers in, numbers out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
