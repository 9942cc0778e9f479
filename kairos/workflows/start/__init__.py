"""Runs of declared workflows, as the commands `run`, `profile` and `runs` start them."""
