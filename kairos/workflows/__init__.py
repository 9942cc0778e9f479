"""Declared workflows (flows): declared, compiled to plans, executed, run over tables, served.

`declare` reads Python and YAML with sandboxed templates; `compile` makes a plan of operators, order
and placement; `execute` turns it into calls, row by row; `run` drives tables and keeps results and
journal; `serve` answers requests by flows; `retrieve` has embedders, rerankers and collections.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
