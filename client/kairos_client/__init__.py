"""Tells Kairos which agent of which workflow makes an LLM call.

    import kairos_client.auto                       # before the framework is imported; that is all

For plain `openai`, or where the framework's own names will not do:

    with kairos_client.workflow(), kairos_client.agent("planner"):
        client.chat.completions.create(...)

Calls to other places than Kairos are left as they are.
"""

from kairos_client.context import Identity, agent, workflow

__all__ = ["Identity", "agent", "workflow"]
