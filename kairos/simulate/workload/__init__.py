"""Workloads without users: workflow files, and arrival times."""
