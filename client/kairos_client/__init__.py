"""Tell Kairos the workflow and the agent of each LLM call.

    import kairos_client.auto                       # before the framework is imported; that is all

For plain `openai`, or if the framework's own names are not suitable:

    with kairos_client.workflow(), kairos_client.agent("planner"):
        client.chat.completions.create(...)

Calls to other servers than Kairos are not changed.
"""

from kairos_client.context import Identity, agent, workflow

__all__ = ["Identity", "agent", "workflow"]
