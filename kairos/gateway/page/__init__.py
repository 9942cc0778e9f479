"""The operators' web page: what waits and why, which instances do what, where workflows stand."""
