"""The `kairos orchestrate` process: it follows workflows over Kafka and learns from them."""
