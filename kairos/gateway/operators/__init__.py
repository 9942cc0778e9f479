"""The operators' port: who may ask there, and what it answers beside the page."""
