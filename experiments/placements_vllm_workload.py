"""What every placement is given: the Kairos paper's three applications together, in bursts.

Workflows of QA, RG and CG (`kairos/simulate/workload/applications`), half, a third and a sixth of
all. Their lengths are scaled to contexts of 512 tokens, so that a run is short: prompts have 87
tokens on average, answers 65 and up to 256. Nothing says beforehand how long an answer will be.
"""

from collections.abc import Sequence
from functools import cache
from random import Random

from kairos.simulate import Workflow, draw_arrivals, draw_submissions
from kairos.simulate.workload.application import generate, load_application
from kairos.simulate.workload.submissions import scaled
from kairos.simulate.workload.workflows import Submission

MIX = {"qa": 3, "rg": 2, "cg": 1}
MAX_CONTEXT = 512
ARRIVALS = "gamma:2"  # gaps whose deviation is twice their mean
_MADE = 200  # workflows of each app, of which runs draw
_MADE_OF = 1  # their seed


def offered(
    count: int, rate_per_s: float, repetition: int, max_context: int = MAX_CONTEXT
) -> list[Submission]:
    """The same for the same repetition, for all placements alike; with others it shares workflows,
    but neither their order nor the instants at which they come. At most 400."""
    random = Random(repetition)  # noqa: S311  (a workload, no secret)
    chosen = [
        each
        for app, weight in MIX.items()
        for each in random.sample(_of(app, max_context), round(count * weight / sum(MIX.values())))
    ]
    at_us = draw_arrivals(ARRIVALS, len(chosen), rate_per_s, repetition)
    return draw_submissions(chosen, at_us, repetition)


@cache
def _of(app: str, max_context: int) -> Sequence[Workflow]:
    return tuple(scaled(generate(load_application(app), _MADE, _MADE_OF), max_context))
