"""What looks at every record: the log on disk, and Prometheus figures."""
