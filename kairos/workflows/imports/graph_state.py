"""State of a LangGraph graph, computed by its own channels from the nodes' writes so far.

LangGraph's channels are used themselves, so a state key with a reducer is reduced as there. Values
are JSON, since a flow stores them in its journal.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

from kairos.workflows.compile.invalid import OperatorFailed

# Consecutive writes of each step: the key that is written, or null for a dict of them.
Steps = Sequence[Sequence[str | None]]


class GraphState:
    """State. `channels`: LangGraph's, by state key, empty. `given`: keys that a row may have."""

    def __init__(self, channels: Mapping[str, Any], given: Collection[str]) -> None:
        self._channels, self._given = channels, given

    def values(
        self, row: Mapping[str, object], writes: Sequence[object], steps: Steps, keys: Sequence[str]
    ) -> dict[str, object]:
        """Return the values of these keys, without keys that have no value.

        Raises LangGraph's InvalidUpdateError: two nodes of one step have written a key without a
        reducer.
        """
        channels = {key: _fresh(channel) for key, channel in self._channels.items()}
        self._update(channels, [deepcopy({key: row[key] for key in self._given if key in row})])
        left = iter(deepcopy(list(writes)))
        for step in steps:
            written = [(key, next(left)) for key in step]
            self._update(channels, [_named(key, value) for key, value in written])
        return {key: channels[key].get() for key in keys if channels[key].is_available()}

    def _update(self, channels: Mapping[str, Any], written: Sequence[Mapping[str, object]]) -> None:
        """Apply the writes of a step; channels without writes are updated, too, as in LangGraph."""
        for key, channel in channels.items():
            channel.update([each[key] for each in written if key in each])


def _fresh(channel: Any) -> Any:
    """Return a copy of a channel for a row: a reducer may change its initial value in place."""
    fresh = channel.copy()
    if fresh.is_available():
        fresh.value = deepcopy(fresh.value)
    return fresh


def _named(key: str | None, value: object) -> Mapping[str, object]:
    if key is not None:
        return {key: value}
    assert isinstance(value, Mapping), "written() gives nothing else"
    return value


def written(node: str, result: object) -> dict[str, object]:
    """Return a node's result as JSON.

    Raises:
        OperatorFailed: it is not a dict of JSON values; it may be a Command.
    """
    if result is None:
        return {}
    if not isinstance(result, dict):
        raise OperatorFailed(
            f"node '{node}' returned a {type(result).__name__}; in a flow it returns a dict of "
            "state keys, or nothing"
        )
    return {str(key): _plain(node, value) for key, value in result.items()}


def _plain(node: str, value: object) -> object:
    """Return the value without subclasses, such as the texts of LangChain's messages."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case list() | tuple():
            return [_plain(node, each) for each in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {str(key): _plain(node, each) for key, each in value.items()}
    raise OperatorFailed(
        f"node '{node}' returned a {type(value).__name__}, and a flow keeps JSON: return its text"
    )


def node_function(
    node: str, runnable: Any, state: GraphState, keys: Sequence[str]
) -> Callable[..., object]:
    """Return a function that runs a node, given the row and the writes before it."""

    async def act_async(
        row: Mapping[str, object], writes: Sequence[object], steps: Steps
    ) -> dict[str, object]:
        return written(node, await runnable.ainvoke(state.values(row, writes, steps, keys)))

    def act(row: Mapping[str, object], writes: Sequence[object], steps: Steps) -> dict[str, object]:
        return written(node, runnable.invoke(state.values(row, writes, steps, keys)))

    is_async = getattr(runnable, "func", runnable) is None  # a coroutine function alone
    return act_async if is_async else act


def after_function(node: str, runnable: Any, *, key: str | None) -> Callable[..., object]:
    """Return a function that makes a node's writes of an answer: a dict of keys, or one key."""

    def after(text: str) -> object:
        result = runnable.invoke(text)
        return written(node, {key: result})[key] if key else written(node, result)

    return after


def texts_function(state: GraphState) -> Callable[..., object]:
    """Return a function that gives state keys as texts, as in a prompt of LangChain."""

    def texts(
        row: Mapping[str, object], writes: Sequence[object], steps: Steps, keys: Sequence[str]
    ) -> dict[str, str]:
        values = state.values(row, writes, steps, keys)
        return {key: format(values[key]) for key in keys if key in values}

    return texts


def final_function(state: GraphState) -> Callable[..., object]:
    """Return a function that gives the final state; null for keys without a value."""

    def final(
        row: Mapping[str, object], writes: Sequence[object], steps: Steps, keys: Sequence[str]
    ) -> dict[str, object]:
        return dict.fromkeys(keys) | state.values(row, writes, steps, keys)

    return final
