"""A model of vLLM: which calls run in each step, and how long the step takes."""
