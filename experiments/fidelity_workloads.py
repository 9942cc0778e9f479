"""What the engines and their model are given: the demo's recorded workflows, drawn at random.

Prompts have 45 to 730 tokens and answers 6 to 180, as they were recorded on a small real model
(`traces/demo-smollm2.jsonl.gz`): two calls a workflow, nine where code is written, one after the
other. Three workloads are made of them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from kairos.simulate import FileCall, Workflow, draw_arrivals, load_workflows
from kairos.simulate.workload.workflows import Submission, workflow

RECORDED = Path(__file__).parents[1] / "traces" / "demo-smollm2.jsonl.gz"
SYSTEM_TOKENS = 224  # seven blocks of 32
LONGER = 5
APART_US = 10_000

Shape = Callable[[Sequence[FileCall]], Sequence[FileCall]]


def as_recorded(calls: Sequence[FileCall]) -> Sequence[FileCall]:
    return calls


def with_system_prompts(calls: Sequence[FileCall]) -> Sequence[FileCall]:
    """All prompts of an agent begin with the same instructions, which no other agent has."""
    return [
        msgspec.structs.replace(
            call,
            prompt_tokens=call.prompt_tokens + SYSTEM_TOKENS,
            shared_prefix_tokens=SYSTEM_TOKENS,
        )
        for call in calls
    ]


def with_long_answers(calls: Sequence[FileCall]) -> Sequence[FileCall]:
    """Up to 900 tokens, where a gateway expects 256 at most: an engine of little memory is given
    more than it can hold."""
    return [
        msgspec.structs.replace(call, completion_tokens=call.completion_tokens * LONGER)
        for call in calls
    ]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the recorded workflows, and what is made of their calls."""

    name: str
    apps: tuple[str, ...]
    shape: Shape = as_recorded

    def at_once(self, count: int, seed: int) -> list[Submission]:
        """As good as at once: so little apart that their order is the same wherever they come."""
        return self._submissions([number * APART_US for number in range(count)], seed)

    def at_rate(self, rate_per_s: float, duration_s: float, seed: int) -> list[Submission]:
        """A Poisson process: as many as it has in this time on average."""
        count = max(1, round(rate_per_s * duration_s))
        return self._submissions(draw_arrivals("poisson", count, rate_per_s, seed), seed)

    def _submissions(self, at_us: Sequence[int], seed: int) -> list[Submission]:
        """Of each app in an order that the seed chooses; the apps in the same proportion all along,
        so that short runs have the load of long ones.

        What prompts share, they share with no run of another seed: what engines that serve one run
        after the other still hold of the last is of no use in the next.
        """
        random = Random(seed)  # noqa: S311  (a workload, no secret)
        recorded = load_workflows(RECORDED)
        due: list[tuple[float, Workflow]] = []
        for app in self.apps:
            of_app = [each for each in recorded if each.app == app]
            order = random.sample(of_app, len(of_app))
            due += [((number + 0.5) / len(order), each) for number, each in enumerate(order)]
        due.sort(key=lambda each: each[0])
        assert len(at_us) <= len(due), "more workflows wanted than were recorded"
        return [
            Submission(at_us=at, workflow=self._made(each, f"{self.name}-{seed}"))
            for at, (_, each) in zip(at_us, due, strict=False)
        ]

    def _made(self, recorded: Workflow, run: str) -> Workflow:
        return workflow(
            [
                msgspec.structs.replace(
                    call, workflow_id=f"{run}-{call.workflow_id}", app=f"{call.app}-{run}"
                )
                for call in self.shape(recorded.calls)
            ]
        )


PLAIN = Workload(name="plain", apps=("qa", "rg", "cg"))
SHORT = Workload(name="short", apps=("qa", "rg"))
SHARED = Workload(name="shared", apps=("qa", "rg", "cg"), shape=with_system_prompts)
LONG = Workload(name="long", apps=("qa", "rg"), shape=with_long_answers)
