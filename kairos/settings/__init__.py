"""The settings: a module for each table of them, and one loader."""
