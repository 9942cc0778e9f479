"""Records of what happened: the log of facts, metrics, traces, audit, usage and explanations.

The log has what each decision knew, so a call can be explained and a run replayed. Metrics and
usage are computed from the same facts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
