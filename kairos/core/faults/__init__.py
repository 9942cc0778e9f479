"""Whose fault a failure is, and what follows from that."""
