"""Who decides: this process, the workers of a host, or a pool of processes over Kafka."""
