"""Decisions that a test completes."""

import msgspec


def deciding(served, priority_of):
    """From now on each request is dispatched with the priority that the test gives it."""
    engine = served.service.brain.runtime._engine
    dispatch = engine.dispatch

    def with_priority(command):
        dispatch(msgspec.structs.replace(command, priority=priority_of(command.request_id)))

    engine.dispatch = with_priority
