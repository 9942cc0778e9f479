"""Learning in a live service: now and then, off the request path."""

import asyncio
import logging
from itertools import islice

from kairos.events import ProfilesLearnt
from kairos.learner import Learner
from kairos.live.store import LearntStore
from kairos.runtime import Runtime

logger = logging.getLogger(__name__)

LEARN_S = 1.0
LESSONS_AT_ONCE = 200  # calls, between which requests have their turn: 2 ms


def recall(runtime: Runtime, learner: Learner, store: LearntStore) -> None:
    """Begin with what was learnt before a restart, if anything was."""
    known = store.read()
    if known is not None:
        learner.restore(known.profiles, known.models)
        runtime.feed(known)


async def learn(runtime: Runtime, learner: Learner) -> None:
    """Publish what is new, until cancelled: worked out in a thread, told like any other fact.

    Serving never ends because learning fails: what could not be learnt is dropped, and said.
    """
    while True:
        await asyncio.sleep(LEARN_S)
        learner.orchestrator.expire(runtime.now())
        try:
            learnt = await learn_once(learner)
        except Exception:
            logger.exception("what ended lately is not learnt from, because of an error in Kairos")
        else:
            if learnt is not None:
                runtime.feed(learnt)


async def learn_once(learner: Learner, *, whole: bool = False) -> ProfilesLearnt | None:
    """Learn from what has ended, in parts; `whole`: see `Profiles.take_changed`."""
    orchestrator = learner.orchestrator
    lessons = iter(await asyncio.to_thread(learner.study, orchestrator.take_ended()))
    while some := list(islice(lessons, LESSONS_AT_ONCE)):
        orchestrator.learn(some)
        await asyncio.sleep(0)
    learning = learner.begin(whole=whole)
    return None if learning is None else await asyncio.to_thread(learner.compute, learning)
