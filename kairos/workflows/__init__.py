"""Declared workflows: declared, compiled to plans, carried out, run over tables, and served."""
