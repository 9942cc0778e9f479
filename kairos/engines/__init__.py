"""Engines of the pool: the configured and discovered ones, their kind, health and figures.

Tells vLLM, llama.cpp and other servers apart, reads their metrics and limits, and starts and stops
engines as processes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
