"""Learning in a live service: now and then, off the request path."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from kairos.core.balancer import Balancer
from kairos.core.events import ProfilesLearnt, Record
from kairos.core.learner import Learner
from kairos.core.runtime import Runtime
from kairos.observe.store import LearntStore

logger = logging.getLogger(__name__)

LEARN_S = 1.0
IDLE_TIMES = 9  # as long as learning took, nothing is learnt: it may use a tenth of a core
LESSONS_AT_ONCE = 200  # calls, between which requests have their turn: 2 ms


def recall(runtime: Runtime, learner: Learner, store: LearntStore) -> None:
    """Begin with what was learnt before a restart, if anything was."""
    known = store.read()
    if known is not None:
        learner.restore(known)
        runtime.feed(known)


def replay(
    decided: Sequence[Record], balancer: Balancer, learner: Learner, store: LearntStore | None
) -> None:
    """Go on from what another process decided until a moment ago. It learnt from the workflows that
    ended then, but for those of the last seconds, which nobody learns from."""
    known = None if store is None else store.read()
    if store is not None and known is not None:
        learner.restore(known)
        # At the first instant there is: a fact of now would make all that follows one of now.
        first = Record(0, known)
        balancer.replay(first)
        store(first)
    for record in decided:
        balancer.replay(record)
        learner.observe(record)
    learner.orchestrator.take_ended()


async def learn(runtime: Runtime, learner: Learner) -> None:
    """Publish what is new, until cancelled: worked out in a thread, told like any other fact.

    Serving never ends because learning fails: what could not be learnt is dropped, and said. Where
    learning takes long, because many calls end, it is done less often, and of more at a time.
    """
    clock = asyncio.get_running_loop().time
    took_s = before_s = 0.0  # the last time, and before that: one alone may have met with something
    while True:
        await asyncio.sleep(max(LEARN_S, IDLE_TIMES * min(took_s, before_s)))
        began_at, before_s = clock(), took_s
        learner.orchestrator.expire(runtime.now())
        try:
            learnt = await learn_once(learner)
        except Exception:
            logger.exception("what ended lately is not learnt from, because of an error in Kairos")
        else:
            if learnt is not None:
                runtime.feed(learnt)
        took_s = clock() - began_at


async def learn_once(learner: Learner, *, whole: bool = False) -> ProfilesLearnt | None:
    """Learn from what has ended, in parts; `whole`: see `Profiles.take_changed`."""
    orchestrator = learner.orchestrator
    lessons = iter(await asyncio.to_thread(learner.study, orchestrator.take_ended()))
    while some := list(islice(lessons, LESSONS_AT_ONCE)):
        orchestrator.learn(some)
        await asyncio.sleep(0)
    learning = learner.begin(whole=whole)
    return None if learning is None else await asyncio.to_thread(learner.compute, learning)
