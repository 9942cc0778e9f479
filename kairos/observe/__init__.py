"""Observers of all records: the log on disk, Prometheus metrics, audit and usage."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
