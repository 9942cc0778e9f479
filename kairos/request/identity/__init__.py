"""Identity of a call: the agent that makes it and what led to it, from several sources by rank."""
