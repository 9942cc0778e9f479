"""Deployment modes: one process, several workers on a host, or a pool of processes over Kafka."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
