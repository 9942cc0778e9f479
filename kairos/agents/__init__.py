"""The runtime of agents on the bus, and how they call a model."""
