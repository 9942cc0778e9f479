"""The operators' port: access control, and its routes except for the page."""
