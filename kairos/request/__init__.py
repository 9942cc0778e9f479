"""A call before it waits: its body, whose it is, its workflow, its expected tokens, its budget.

Reads large bodies within bounds, finds the application, agent and caller from headers, traces,
prompts and answers (`identity`), counts tokens, and refuses what no engine could serve.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
