"""Decisions: facts in, commands out. No clock, no I/O, no randomness.

`orchestrator` rebuilds workflows from calls and learns what remains of them; `scheduler` orders the
queue, with priorities, fair shares and the starvation guard; `dispatcher` books KV memory over time
and chooses the engine; `faults` opens circuits and quarantines; admission decides on retries. Here
are the facts, commands and errors that all other folders speak in, too.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
