"""Learning in a live service: now and then, off the request path."""

import asyncio
from itertools import islice

from kairos.learner import Learner
from kairos.live.store import LearntStore
from kairos.runtime import Runtime

LEARN_S = 1.0
LESSONS_AT_ONCE = 200  # calls, between which requests have their turn: 2 ms


def recall(runtime: Runtime, learner: Learner, store: LearntStore) -> None:
    """Begin with what was learnt before a restart, if anything was."""
    known = store.read()
    if known is not None:
        learner.restore(known.profiles, known.models)
        runtime.feed(known)


async def learn(runtime: Runtime, learner: Learner) -> None:
    """Publish what is new, until cancelled: worked out in a thread, told like any other fact."""
    while True:
        await asyncio.sleep(LEARN_S)
        orchestrator = learner.orchestrator
        orchestrator.expire(runtime.now())
        lessons = iter(await asyncio.to_thread(learner.study, orchestrator.take_ended()))
        while some := list(islice(lessons, LESSONS_AT_ONCE)):
            orchestrator.learn(some)
            await asyncio.sleep(0)
        learning = learner.begin()
        if learning is not None:
            runtime.feed(await asyncio.to_thread(learner.compute, learning))
