"""A call's way to its engine and back: bytes, streams, failures."""
