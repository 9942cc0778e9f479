"""Kairos: the control plane between multi-agent LLM applications and a pool of vLLM instances."""

from kairos.host import compiled_brain

__version__ = "0.1.0"

is_compiled = compiled_brain.install_compiled_brain()
