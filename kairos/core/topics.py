"""The names of what travels on the bus. `cluster/kafka/topic_setup.py` says how each topic is
kept."""

AGENTS = "kairos.agents."  # + app.agent: an agent's inbox
REQUESTS = "kairos.requests"  # LLM calls, and what is told of them to the balancer; by model pool
DISPATCHES = "kairos.dispatches"  # what the balancer says to whoever performs a call; by model pool
REPLIES = "kairos.replies."  # + name: answers to LLM calls that came over the bus
EVENTS = "kairos.events"  # facts, with what was decided on them
PROFILES = "kairos.profiles"  # what is known of each agent and app; compacted
RESULTS = "kairos.results"  # how workflows ended
DEAD_LETTERS = "kairos.dead-letters"  # messages that nobody could handle, and why


def inbox(app: str, agent: str) -> str:
    return f"{AGENTS}{app}.{agent}"
