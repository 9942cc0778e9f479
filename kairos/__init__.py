"""Kairos: the control plane between multi-agent LLM applications and a pool of vLLM instances."""

from kairos import compiled_brain

__version__ = "0.1.0"

is_compiled = compiled_brain.install()
