"""Runs of declared workflows: their tables, their results on disk, and their drivers."""
