"""Rebuilds workflows from what is seen of them, and learns from those that ended."""
