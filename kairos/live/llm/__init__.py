"""How agents call a model: over HTTP, or over the bus."""
