"""Durations of workflows with an engine to themselves, against which slowdown is measured."""

from collections.abc import Iterable
from heapq import heappop, heappush

import msgspec

from kairos.core import EngineProfile
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.users import engine_call
from kairos.simulate.workload.course import Course
from kairos.simulate.workload.prompt import PromptPiece
from kairos.simulate.workload.workflows import Workflow


def alone_us(workflows: Iterable[Workflow], profile: EngineProfile) -> dict[str, int]:
    """Return the duration of each workflow by id, on one engine without load or cached prompts.

    It includes gaps of tools and users, but no queue. One engine serves them one after the other,
    and the names of their prompts' pieces are made unique to each, so that none finds what another
    left in the cache.
    """
    engine = ModelledEngine(profile)
    now = 0
    took: dict[str, int] = {}
    for workflow in workflows:
        ended_at = _run(engine, Course(_private(workflow)), now)
        took[workflow.id] = ended_at - now
        now = ended_at
    return took


def _run(engine: ModelledEngine, course: Course, now: int) -> int:
    """Returns when the workflow has ended."""
    to_make: list[tuple[int, int]] = []  # when, and the position of the call

    def release(positions: list[int]) -> None:
        for position in positions:
            heappush(to_make, (now + course.gap_us(position), position))

    release(course.begin())
    while not course.is_done:
        seen_at = engine.next_at()
        if to_make and (seen_at is None or to_make[0][0] <= seen_at):
            now, position = heappop(to_make)
            engine.add(engine_call(course.workflow, position, str(position)), now)
            continue
        assert seen_at is not None
        now = seen_at
        for each in engine.advance(seen_at):
            if each.what == "finished":
                release(course.ended(int(each.call_id)))
    return now


def _private(workflow: Workflow) -> Workflow:
    prompts = tuple(
        tuple(PromptPiece(f"{workflow.id} {piece.name}", piece.tokens) for piece in prompt)
        for prompt in workflow.prompts
    )
    return msgspec.structs.replace(workflow, prompts=prompts)
