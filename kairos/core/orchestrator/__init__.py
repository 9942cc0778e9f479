"""Rebuild workflows from observed calls, and learn from the workflows that ended."""
