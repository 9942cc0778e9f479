"""Kairos: the control plane between multi-agent LLM applications and a pool of vLLM instances."""

__version__ = "0.1.0"
