"""The door of agents: name an agent, say what it does with a message.

Programs import from here; what they import is in `kairos/agents/runtime.py`.
"""

from kairos.agents import LLM, Application, Result, Task, read_result, run, submit
from kairos.core import USER

__all__ = ["LLM", "USER", "Application", "Result", "Task", "read_result", "run", "submit"]
