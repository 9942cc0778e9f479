"""Processors as separate services, and values that stay with them."""
