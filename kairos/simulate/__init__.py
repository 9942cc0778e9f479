"""Kairos in virtual time: simulated engines, workloads, replay, calibration, the stand-in engine.

The decision code is the live one; the engine's step times and memory are modelled. `standin` is an
engine's HTTP server for tests and demos.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
