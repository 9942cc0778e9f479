"""Observers of all records: the log on disk, Prometheus metrics, audit and usage."""
