"""Runs of declared workflows: their tables, what outlives a crash, and who drives them."""
