"""Settings of a service: a module for each table of the file, defaults, checks, and one loader."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
