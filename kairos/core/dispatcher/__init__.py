"""Which instance serves it."""
