"""Identity of calls, as known by the running framework."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from kairos_client import ends, trouble
from kairos_client.context import NOBODY, Identity
from kairos_client.imports import when_imported

# By a module that programs import of a framework: our module for it. Its `watch` is called once
# that is imported, with the function that reports the end of a workflow; its `identify` returns the
# identity of the current task or thread.
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
    """Return the identity from the first framework that has one, as frameworks may be nested."""
    for identify_in in _identify:
        try:
            found = identify_in()
        except Exception as error:  # noqa: BLE001
            trouble.met(f"asking {identify_in.__module__} who calls", error)
            continue
        if found is not None:
            return found
    return NOBODY
