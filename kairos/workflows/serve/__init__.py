"""Flows stored on the server, which clients invoke for one row at a time."""
