"""Workflows served in virtual time, by the same balancer, learner and policies as live.

The engines step as the stand-in does (`kairos/sim/batch.py`), with the demo's figures: each step
takes 15 ms and 8 ms for each running call, and gives each a token; prompts take no time. So it says
how orders compare, not how fast vLLM is. A run of 120 workflows takes a tenth of a second.
"""

from collections.abc import Callable, Mapping, Sequence

from kairos.balancer import Balancer
from kairos.dispatcher.placements import PLACEMENTS
from kairos.events import Arrived, Dispatch, Finished, InstanceJoined, Refuse, WorkflowEnded
from kairos.learner import Learner
from kairos.metrics import RunMetrics
from kairos.model import SECOND, Instance, Request
from kairos.orchestrator.orchestrator import Orchestrator
from kairos.runtime import Runtime
from kairos.scheduler.knowledge import Knowledge
from kairos.scheduler.policies import Policy
from kairos.scheduler.queue import OVERTAKEN
from kairos.sim.clock import VirtualClock
from kairos.workload import Call

INSTANCES, SLOTS = 2, 4
STEP_US, STEP_PER_CALL_US = 15_000, 8_000
LEARN_US = SECOND
EXPECTED_TOKENS = 256  # what the gateway expects of a call that says nothing

Task = Sequence[Sequence[Call]]  # stages, one after the other, of calls made together


class _Instance:
    """Continuous batching: every call that runs gets a token at each step."""

    def __init__(self, clock: VirtualClock, on_end: Callable[[str], None]) -> None:
        self._clock, self._on_end = clock, on_end
        self._left: dict[str, int] = {}  # tokens

    def take(self, request_id: str, tokens: int) -> None:
        self._left[request_id] = tokens
        if len(self._left) == 1:
            self._step()

    def _step(self) -> None:
        step_us = STEP_US + STEP_PER_CALL_US * len(self._left)
        stepping = list(self._left)
        self._clock.call_at(self._clock.now() + step_us, lambda: self._stepped(stepping))

    def _stepped(self, requests: Sequence[str]) -> None:
        for request_id in requests:
            self._left[request_id] -= 1
        ended = [request_id for request_id in requests if not self._left[request_id]]
        still_stepping = len(self._left) > len(ended)
        for request_id in ended:
            del self._left[request_id]
        if still_stepping:
            self._step()
        for request_id in ended:
            self._on_end(request_id)


class World:
    """Tasks that arrive, and what becomes of them. `run` once."""

    def __init__(
        self,
        tasks: Sequence[Task],
        at_us: Sequence[int],
        policy: Callable[[Knowledge], Policy],
        *,
        overtaken: float = OVERTAKEN,
    ) -> None:
        self.metrics = RunMetrics()
        self._tasks, self._at_us = tasks, at_us
        self._clock = VirtualClock()
        self._learner = Learner(Orchestrator())
        placement = PLACEMENTS["least-kv"]()
        balancer = Balancer(policy, placement, max_wait_us=10**15, overtaken=overtaken)
        observers = (self.metrics, self._learner.observe)
        self._runtime = Runtime(balancer, self, self._clock, observers)
        self._instances = {f"i{n}": _Instance(self._clock, self._end) for n in range(INSTANCES)}
        self._calls: dict[str, Call] = {}
        self._in_stage: dict[int, int] = {}  # calls of the task's stage that have not ended
        self._open = len(tasks)
        for name in self._instances:
            instance = Instance(id=name, models=("m",), max_num_seqs=SLOTS)
            self._runtime.feed(InstanceJoined(instance))
        for number, at in enumerate(at_us):
            self._clock.call_at(at, lambda n=number: self._begin(n, 0))
        self._clock.call_at(LEARN_US, self._learn)

    def run(self) -> RunMetrics:
        self._clock.run()
        return self.metrics

    def dispatch(self, command: Dispatch) -> None:
        call = self._calls[command.request_id]
        instance = self._instances[command.instance_id]
        instance.take(command.request_id, call.completion_tokens)

    def refuse(self, command: Refuse) -> None:
        raise AssertionError(command)

    def _begin(self, number: int, stage: int) -> None:
        self._in_stage[number] = len(self._tasks[number][stage])
        before = range(len(self._tasks[number][stage - 1])) if stage else ()
        for branch, call in enumerate(self._tasks[number][stage]):
            request = Request(
                id=request_id(number, stage, branch),
                workflow_id=str(number),
                app=call.app,
                agent=call.agent,
                upstream=call.upstream,
                parent_ids=tuple(request_id(number, stage - 1, n) for n in before),
                workflow_started_at=self._at_us[number],
                arrived_at=self._clock.now(),
                prompt_tokens=call.prompt_tokens,
                completion_tokens=EXPECTED_TOKENS,
            )
            self._calls[request.id] = call
            self._runtime.feed(Arrived(request))

    def _end(self, ended_id: str) -> None:
        call = self._calls.pop(ended_id)
        self._runtime.feed(Finished(ended_id, call.prompt_tokens, call.completion_tokens))
        number, stage, _ = map(int, ended_id.split("-"))
        self._in_stage[number] -= 1
        if self._in_stage[number]:
            return
        if stage + 1 < len(self._tasks[number]):
            self._begin(number, stage + 1)
        else:
            self._open -= 1
            self._runtime.feed(WorkflowEnded("default", str(number)))

    def _learn(self) -> None:
        learnt = self._learner.step()
        if learnt is not None:
            self._runtime.feed(learnt)
        if self._open:
            self._clock.call_at(self._clock.now() + LEARN_US, self._learn)


def request_id(number: int, stage: int, branch: int) -> str:
    return f"{number}-{stage}-{branch}"


def true_remaining_us(tasks: Sequence[Task]) -> Mapping[str, float]:
    """What a batch of one would take from each call on, its own included: for the oracle."""
    remaining: dict[str, float] = {}
    for number, task in enumerate(tasks):
        after = 0.0
        for stage in reversed(range(len(task))):
            for branch, call in enumerate(task[stage]):
                own = call.completion_tokens * (STEP_US + STEP_PER_CALL_US)
                remaining[request_id(number, stage, branch)] = own + after
            after = max(remaining[request_id(number, stage, n)] for n in range(len(task[stage])))
    return remaining
