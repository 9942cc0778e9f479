"""`kairos orchestrate`: follows workflows over Kafka, learns from those that end, publishes it."""
