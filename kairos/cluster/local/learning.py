"""Learning in a live service: periodically, off the request path."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from kairos.core import Balancer, Learner, ProfilesLearnt, Record, Runtime
from kairos.observe import LearntStore

logger = logging.getLogger(__name__)

LEARN_S = 1.0
IDLE_TIMES = 9  # pause for 9 times as long as learning took: it uses at most a tenth of a core
LESSONS_AT_ONCE = 200  # calls (2 ms), then requests are served


def recall(runtime: Runtime, learner: Learner, store: LearntStore) -> None:
    """Restore what was learnt before a restart, if anything was."""
    known = store.read()
    if known is not None:
        learner.restore(known)
        runtime.feed(known)


def replay(
    decided: Sequence[Record], balancer: Balancer, learner: Learner, store: LearntStore | None
) -> None:
    """Restore a balancer from the records of a process that this one replaces.

    That process learnt from the workflows that had ended, except in its last seconds; the ones
    that ended then are skipped.
    """
    known = None if store is None else store.read()
    if store is not None and known is not None:
        learner.restore(known)
        # At time 0: the balancer's clock never runs back, and the records are older than now.
        first = Record(0, known)
        balancer.replay(first)
        store(first)
    for record in decided:
        balancer.replay(record)
        learner.observe(record)
    learner.orchestrator.take_ended()


async def learn(runtime: Runtime, learner: Learner) -> None:
    """Learn and publish the changes, until cancelled; the computation runs in a thread.

    An error in learning never stops the service: it is logged, and the ended workflows are skipped.
    Where learning takes long, because many calls end, it runs less often, with more calls at a
    time.
    """
    clock = asyncio.get_running_loop().time
    took_s = before_s = 0.0  # the last two durations: a single one may be an outlier
    while True:
        await asyncio.sleep(max(LEARN_S, IDLE_TIMES * min(took_s, before_s)))
        began_at, before_s = clock(), took_s
        learner.orchestrator.expire(runtime.now())
        try:
            learnt = await learn_once(learner)
        except Exception:
            logger.exception("recently ended workflows are not learnt from: an error in Kairos")
        else:
            if learnt is not None:
                runtime.feed(learnt)
        took_s = clock() - began_at


async def learn_once(learner: Learner, *, whole: bool = False) -> ProfilesLearnt | None:
    """Learn from the workflows that have ended, in parts; `whole` as in `Profiles.take_changed`."""
    orchestrator = learner.orchestrator
    lessons = iter(await asyncio.to_thread(learner.study, orchestrator.take_ended()))
    while some := list(islice(lessons, LESSONS_AT_ONCE)):
        orchestrator.learn(some)
        await asyncio.sleep(0)
    learning = learner.collect_changes(whole=whole)
    return None if learning is None else await asyncio.to_thread(learner.compute, learning)
