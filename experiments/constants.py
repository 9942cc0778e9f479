"""The constants that steer the default policy and placement, by subject: what each is, why it is
so, and where that was measured. What each is worth today is measured anew by `e32_constants.py`.

The values stand in the modules that use them; here they are read from there, and can be changed for
one run. Bounds on memory and on sizes are left out: they decide nothing as long as nothing is at
its bound.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import msgspec

import kairos
from kairos.core import Balancer


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A constant. `half`, `twice`: its changed value, where that is not half or twice it."""

    name: str
    module: str  # below kairos: where it stands
    unit: str
    what: str
    why: str
    evidence: str = ""  # a command, or a text; empty: none but the table below
    read_in: tuple[str, ...] = ()  # further modules, which import it by name
    of_class: str | None = None  # it is an attribute of that
    keyword: str | None = None  # of `Balancer`, whose default it is
    half: Any = None
    twice: Any = None

    @property
    def value(self) -> Any:
        return getattr(self._holders()[0], self.name)

    def changed_to(self, way: str) -> Any:
        """`way`: half or twice."""
        given = getattr(self, way)
        if given is not None:
            return given
        value = self.value * (0.5 if way == "half" else 2)
        return max(1, round(value)) if isinstance(self.value, int) else value

    def _holders(self) -> list[Any]:
        modules = [import_module(f"kairos.{each}") for each in (self.module, *self.read_in)]
        return [getattr(each, self.of_class) if self.of_class else each for each in modules]

    @contextmanager
    def set_to(self, value: Any) -> Iterator[None]:
        """In this process, until the block ends: what is made meanwhile goes by it."""
        assert not kairos.is_compiled, "compiled code would see nothing of it"
        with ExitStack() as stack:
            for holder in self._holders():
                stack.callback(setattr, holder, self.name, getattr(holder, self.name))
                setattr(holder, self.name, value)
            if self.keyword is not None:
                defaults = Balancer.__init__.__kwdefaults__
                assert defaults is not None
                stack.callback(defaults.__setitem__, self.keyword, defaults[self.keyword])
                defaults[self.keyword] = value
            yield


SUBJECTS: Mapping[str, tuple[Constant, ...]] = {
    "Order": (
        Constant(
            name="LEVEL",
            module="core.scheduler.policies",
            of_class="LeastWorkLeft",
            unit="ratio",
            what="work that differs by less is taken for equal: the older workflow goes first",
            why="a wide fan-out gets new keys now and then, not with each call that ends",
            half=1.005,
            twice=1.02,
        ),
        Constant(
            name="PATIENCE",
            module="core.scheduler.guard",
            unit="times the work of the workflow",
            what="so long a workflow may wait, until its calls are overdue",
            why="half makes the mean 6 % longer and P99 of slowdown 25 %; twice makes the mean 2 % "
            "shorter, and changes no tail by more than its interval",
            evidence="`python -m experiments run e52_guard_constants`",
        ),
        Constant(
            name="GRACE_US",
            module="core.scheduler.guard",
            unit="µs",
            what="that a workflow may wait on top of that",
            why="half or twice of it changes nothing by more than its interval",
            evidence="`python -m experiments run e52_guard_constants`",
        ),
        Constant(
            name="SHARE",
            module="core.scheduler.guard",
            unit="of the work that a queue sends",
            what="the most that goes because it is overdue",
            why="half of all work makes the mean 4 % longer; an eighth changes nothing by more "
            "than its interval",
            evidence="`python -m experiments run e52_guard_constants`",
        ),
        Constant(
            name="PASSED_OVER",
            module="core.scheduler.queue",
            keyword="passed_over",
            unit="times the call's own time",
            what="so long the first that does not fit is passed over, until it has a reservation",
            why="a reservation at once costs 4 % where prompts differ by thirty times, after once "
            "that time 2 % (`magentic_one`)",
        ),
        Constant(
            name="BACKFILL",
            module="core.scheduler.queue",
            keyword="backfill",
            unit="calls",
            what="that are looked at behind the first, where it does not fit",
            why="bounds the time of a decision",
            evidence="`python -m bench.placement`",
        ),
        Constant(
            name="_RENEWED_AT_ONCE",
            module="core.scheduler.queues",
            unit="keys per fact",
            what="that are renewed after new profiles",
            why="under 2 ms, so that no fact waits long",
            evidence="`python -m bench.brain`",
        ),
        Constant(
            name="_US_PER_COMPLETION_TOKEN",
            module="core.scheduler.declared_work",
            unit="µs",
            what="the time of a token of an answer, until anything is learnt",
            why="only its proportion to a prompt's token counts: 100 to 1, as on an A40",
        ),
    ),
    "The model of what is left": (
        Constant(
            name="MODEL_CALLS",
            module="core.orchestrator.remaining_model",
            unit="calls",
            what="the newest calls of an application, to which its model is fitted",
            why="recorded coding workflows, of 66 calls each, need as many; 700 kB an application",
            evidence="`python -m experiments run e16_ordering`",
        ),
        Constant(
            name="_RIDGE",
            module="core.orchestrator.remaining_model",
            unit="calls",
            what="the weight of the prior beside what was seen",
            why="found by trial on recorded workflows",
            evidence="`python -m experiments run e16_ordering`",
        ),
        Constant(
            name="_HABIT",
            module="core.orchestrator.remaining_model",
            unit="calls",
            what="after so many at a step, half of what they have in common is believed",
            why="found by trial on recorded workflows",
            evidence="`python -m experiments run e16_ordering`",
        ),
        Constant(
            name="OPEN_CALLS",
            module="core.orchestrator.open_workflows",
            read_in=("core.orchestrator.orchestrator",),
            unit="calls",
            what="of open workflows, to which a model is fitted too",
            why="a quarter of what has ended",
            evidence="`python -m experiments.hindsight`",
        ),
        Constant(
            name="_RENEWED",
            module="core.orchestrator.profiles",
            unit="calls",
            what="after so many more, an application's model is fitted anew",
            why="bounds the time of learning",
            evidence="`python -m bench.learning`",
        ),
    ),
    "Lengths of answers": (
        Constant(
            name="_WINDOW",
            module="core.scheduler.output_lengths",
            unit="answers",
            what="the newest of an agent, of which its distribution is made",
            why="not measured before",
        ),
        Constant(
            name="_FEWEST",
            module="core.scheduler.output_lengths",
            unit="answers",
            what="before that, nothing is said of the agent's lengths",
            why="not measured before",
        ),
        Constant(
            name="_GUESSED",
            module="core.scheduler.output_lengths",
            unit="tokens",
            what="guesses that stand beside the answers seen",
            why="without them real vLLM preempted 0.13 times per call; sixteen instead of four "
            "cost 3 to 5 % of the mean latency",
            evidence="`tests/simulation/test_restart.py`",
            half=[74, 355],
            twice=[17, 53, 96, 147, 212, 298, 429, 710],
        ),
    ),
    "Memory": (
        Constant(
            name="SPREAD",
            module="core.dispatcher.survival_packing",
            unit="standard deviations",
            what="of the forecast that are kept free",
            why="more makes calls wait longer than preemptions cost",
            evidence="`python -m experiments.placements_vllm`",
        ),
        Constant(
            name="WIDEST",
            module="core.dispatcher.survival_packing",
            unit="share of the memory",
            what="that the standard deviations take at most",
            why="without it workflows take 6 to 34 % longer where memory has room for few calls",
            evidence="`python -m experiments run e63_little_memory`",
        ),
        Constant(
            name="FREE",
            module="core.dispatcher.occupancy",
            read_in=("core.dispatcher.survival_packing",),
            unit="share of the memory",
            what="kept free for the next second",
            why="steps last, so all that grow may take a block at once",
            evidence="`python -m experiments.placements_vllm`",
        ),
        Constant(
            name="RENEWED_US",
            module="core.dispatcher.occupancy",
            read_in=("core.dispatcher.survival_packing",),
            unit="µs",
            what="forecasts that are so old are derived anew",
            why="half of a slot",
        ),
        Constant(
            name="FEW",
            module="core.dispatcher.occupancy",
            read_in=("core.dispatcher.survival_packing",),
            unit="calls",
            what="changes to less than one in so many calls leave a forecast as it is",
            why="a tenth of the cost",
            evidence="`python -m bench.placement`",
        ),
    ),
    "The choice of the instance": (
        Constant(
            name="ALIKE",
            module="core.dispatcher.survival_packing",
            unit="share of the cost",
            what="instances whose costs differ by less are alike: then memory decides",
            why="noise of the estimates",
        ),
        Constant(
            name="ALIKE_BUT_FOR_LOAD",
            module="core.dispatcher.survival_packing",
            unit="share of the cost",
            what="the same, where all have the same of the prompt cached",
            why="2.2 % less mean latency on `magentic_one`, 0.3 to 0.8 % elsewhere",
            evidence="`python -m experiments run e07_placements`",
        ),
        Constant(
            name="_FORGETTING",
            module="core.dispatcher.speed",
            unit="factor per observation",
            what="how quickly what was seen of an instance's pace is forgotten",
            why="a memory of fifty observations",
            half=0.96,
            twice=0.99,
        ),
        Constant(
            name="_CLEARLY",
            module="core.dispatcher.speed",
            unit="ratio",
            what="an instance counts as quicker or slower than its kind beyond that",
            why="calls differ, and so do instances, by chance",
            half=1.15,
            twice=1.6,
        ),
        Constant(
            name="_PATIENCE",
            module="core.dispatcher.ledger",
            unit="times what the prompt is expected to take",
            what="until a prompt under way is no longer waited for",
            why="not measured before",
        ),
        Constant(
            name="_MISSED",
            module="core.dispatcher.prefixes",
            unit="share",
            what="where fewer of the expected cached tokens were found, the rest was evicted",
            why="not measured before",
            twice=0.9,
        ),
    ),
    "Memory kept for what comes back": (
        Constant(
            name="LOST",
            module="core.dispatcher.kv_retention",
            unit="share of the contexts",
            what="that are lost where nobody keeps them",
            why="about half of what nobody keeps is found all the same (`claude_code`)",
            evidence="`python -m experiments run e07_placements`",
            twice=1.0,
        ),
        Constant(
            name="_WINDOW",
            module="core.dispatcher.kv_retention",
            unit="gaps",
            what="the newest of an agent, by which it is told how long to keep",
            why="not measured before",
        ),
        Constant(
            name="_FEWEST",
            module="core.dispatcher.kv_retention",
            unit="gaps",
            what="before that, nothing is kept for the agent",
            why="not measured before",
        ),
    ),
    "What engines say": (
        Constant(
            name="PRESSED",
            module="core.dispatcher.instance_health",
            unit="share of the memory in use",
            what="from there on an instance on which calls wait gets nothing new",
            why="a lower share is reached by calls that wait for the step to end: 8 % where "
            "answers are short",
            half=0.985,
            twice=0.95,
        ),
        Constant(
            name="EASED",
            module="core.dispatcher.instance_health",
            unit="share of the memory in use",
            what="below it the instance gets calls again",
            why="less than that at which it stopped, or it would go on and off",
            half=0.965,
            twice=0.9,
        ),
        Constant(
            name="_WEIGHT",
            module="core.dispatcher.instance_health",
            unit="share",
            what="of the newest difference between what is booked and what the engine says",
            why="not measured before",
            twice=1.0,
        ),
    ),
}
