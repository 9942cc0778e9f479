"""Names of Kafka topics. `cluster/kafka/topic_setup.py` has how each is configured."""


class Topic:
    """Topics, and prefixes of topics' names."""

    AGENTS = "kairos.agents."  # + app.agent: an agent's inbox
    REQUESTS = "kairos.requests"  # LLM calls and their progress, by model pool
    DISPATCHES = "kairos.dispatches"  # the balancer's commands to gateways, by model pool
    REPLIES = "kairos.replies."  # + name: answers to LLM calls that came over the bus
    EVENTS = "kairos.events"  # facts, each with the decisions made on it
    PROFILES = "kairos.profiles"  # learnt profiles of agents and apps; compacted
    RESULTS = "kairos.results"  # outcomes of workflows
    DEAD_LETTERS = "kairos.dead-letters"  # messages that could not be handled, with the reason


def inbox_topic(app: str, agent: str) -> str:
    """Return the name of an agent's inbox topic."""
    return f"{Topic.AGENTS}{app}.{agent}"
