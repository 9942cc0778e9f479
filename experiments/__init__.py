"""Claims that are measured, not believed: one module per claim."""
