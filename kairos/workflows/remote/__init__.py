"""Processors as services of their own, and values that stay with them."""
