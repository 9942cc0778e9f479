"""Several processes in front of one pool of engines: decisions in one place, over Kafka."""
