"""Planning of hardware: which accelerators to buy or rent, how many engines, and what they cost.

The catalogue of accelerators and models, the predictor of latency and cost of a pool, the search
for the cheapest pool, steps from today's pool to it, and the scaling of a running pool. Pure but
for reading files and asking the platform that starts engines.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
