"""HTTP out: calls relayed to engines, streams, and what happens when an engine fails.

The client of engines, the relay of an answer to the caller, retry on another engine before the
first byte, errors after it, prefill on one engine and decoding on another.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
