"""Who calls, as the framework knows that is running."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from kairos_client import ends, trouble
from kairos_client.context import NOBODY, Identity
from kairos_client.imports import when_imported

# By the module that a program imports of a framework: ours that watches it, with `watch`, which is
# called once that is there, with what is to be told of a workflow that is over, and `identify`,
# which says who calls in the task or thread that it is called in.
_WATCHED: dict[str, str] = {
    "langgraph.pregel": "langgraph",
    "agents.models.openai_responses": "openai_agents",
    "pydantic_ai": "pydantic_ai",
    "autogen_agentchat": "autogen",
    "llama_index.core": "llamaindex",
    "crewai": "crewai",
    "agent_framework": "agent_framework",
    "google.adk.runners": "google_adk",
    "ag2": "ag2",
}
_identify: list[Callable[[], Identity | None]] = []


def watch() -> None:
    for module, ours in _WATCHED.items():
        when_imported(module, _watcher(ours))


def _watcher(name: str) -> Callable[[ModuleType], None]:
    def begin(_: ModuleType) -> None:
        ours = import_module(f"kairos_client.frameworks.{name}")
        ours.watch(ends.tell)
        _identify.append(ours.identify)

    return begin


def identify() -> Identity:
    """Of several frameworks that run, one inside of the other, the first that knows."""
    for identify_in in _identify:
        try:
            found = identify_in()
        except Exception as error:  # noqa: BLE001
            trouble.met(f"asking {identify_in.__module__} who calls", error)
            continue
        if found is not None:
            return found
    return NOBODY
