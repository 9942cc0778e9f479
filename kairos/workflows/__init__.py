"""Declared workflows: declared, compiled to plans, carried out, run over tables, and served."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
