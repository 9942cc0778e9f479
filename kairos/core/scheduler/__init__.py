"""Which request is served next."""
