"""Declared workflows: operators over the rows of a table, in Python or in YAML."""
