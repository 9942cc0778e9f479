"""Kairos: the control plane between multi-agent LLM applications and a pool of vLLM instances."""

from kairos.host import install_compiled_brain

__version__ = "0.1.0"

is_compiled = install_compiled_brain()
