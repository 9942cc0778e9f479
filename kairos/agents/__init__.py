"""Runtime of agents on the bus, and their calls of models."""
