"""Runs of declared workflows whose partitions are actors of a Ray cluster."""
