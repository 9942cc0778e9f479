"""Deployment modes: one process, several workers on a host, or a pool of processes over Kafka."""
