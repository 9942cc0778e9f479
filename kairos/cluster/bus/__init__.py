"""The bus in memory, and what every bus shares. The one on Kafka is in `kairos.cluster.kafka`."""
