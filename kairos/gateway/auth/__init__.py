"""API keys and signed tokens: which caller a request is of."""
