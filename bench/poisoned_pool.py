"""A tenant beside another in virtual time, on modelled engines: a neighbour like itself, one whose
workflows fan out, or a poisoned one. All ask for the same number of calls of the same sizes.

The poisoned one's workflows fan out, too, and some are cancelled while they wait or run; each of
its calls has the name of an app and of an agent that nobody has had. And before all that, it has
made up very many names.
"""

from collections.abc import Callable
from random import Random
from typing import Literal

import msgspec

from bench.virtual_pool import VirtualPool
from kairos.core import (
    EXPECTED_COMPLETION_TOKENS,
    SECOND,
    Arrived,
    Cancelled,
    Dispatch,
    EngineProfile,
    Finished,
    FirstToken,
    Refuse,
    Request,
    WorkflowEnded,
)
from kairos.simulate.engine.sequence import CallProgress, EngineCall
from kairos.simulate.workload.prompt import PromptPiece

Other = Literal["neighbour", "fans out", "poisoned"]
HONEST, OTHER = "honest", "other"
CALLS = 3  # of an honest workflow, one after the other, each of an agent of its own
FAN_OUT = 30  # calls at once of one that fans out
CANCELLED = 0.25  # of the poisoned workflows
SHORTEST_S, LONGEST_S = 0.1, 3.0  # after which
WARM_S = 60.0  # of honest work alone, so that something is learnt of it


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Of each tenant."""

    per_s: float  # calls
    prompt: tuple[int, int] = (100, 600)  # tokens of a call, at least and at most
    answer: tuple[int, int] = (20, 200)


class _Workflow(msgspec.Struct):
    tenant: str
    id: str
    began_at: int
    left: int  # calls that have not come yet
    running: int = 0  # calls that have not ended


class _Call(msgspec.Struct):
    workflow: _Workflow
    prompt: int
    answer: int
    instance_id: str | None = None


class SharedPool(VirtualPool):
    """Two tenants, whose calls are drawn apart: the honest one's are the same beside any other."""

    def __init__(self, work: Work, engine: EngineProfile, other: Other, seed: int) -> None:
        super().__init__({}, 2, engine)
        self._work = work
        self._fans_out, self._poisoned = other != "neighbour", other == "poisoned"
        self._dice = {each: Random(f"{seed} {each}") for each in (HONEST, OTHER)}
        self._calls: dict[str, _Call] = {}
        self._numbers = 0
        self.latencies_s: list[float] = []  # of honest workflows, once both are there
        self.calls = dict.fromkeys(self._dice, 0)  # that ended
        self._measured_from = 0

    def play(self, seconds: float, names: int) -> "SharedPool":
        """The other tenant comes when something is known of the honest one: with so many names at
        once, if it is poisoned."""
        self._measured_from = int(WARM_S * SECOND)
        self._expect(HONEST, CALLS)
        self.clock.call_at(self._measured_from, lambda: self._come(names))
        self.run(self._measured_from + int(seconds * SECOND))
        return self

    def _come(self, names: int) -> None:
        if self._poisoned:
            for number in range(names):
                request = self._request(f"n{number}", OTHER, f"n{number}", f"n{number}", 10)
                self.runtime.feed(Arrived(request))
                self.runtime.feed(Cancelled(request.id))
                if number % 8 == 0:
                    self.runtime.feed(WorkflowEnded(OTHER, request.workflow_id, cancelled=True))
        self._expect(OTHER, FAN_OUT if self._fans_out else CALLS)

    def _expect(self, tenant: str, calls: int) -> None:
        """The next workflow, where each has so many calls."""
        after_s = self._dice[tenant].expovariate(self._work.per_s / calls)

        def comes() -> None:
            self._begin(tenant)
            self._expect(tenant, calls)

        self._later(after_s, comes)

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        self.clock.call_at(self.clock.now() + int(after_s * SECOND), what)

    def _begin(self, tenant: str) -> None:
        self._numbers += 1
        fans_out = tenant == OTHER and self._fans_out
        left = 0 if fans_out else CALLS - 1
        workflow = _Workflow(tenant, f"{tenant}-{self._numbers}", self.clock.now(), left)
        for _ in range(FAN_OUT if fans_out else 1):
            self._call(workflow)
        if tenant == OTHER and self._poisoned and self._dice[tenant].random() < CANCELLED:
            after_s = self._dice[tenant].uniform(SHORTEST_S, LONGEST_S)
            self._later(after_s, lambda: self._cancel(workflow))

    def _call(self, workflow: _Workflow) -> None:
        dice, work = self._dice[workflow.tenant], self._work
        self._numbers += 1
        name = f"{workflow.id}/{self._numbers}"
        call = _Call(workflow, dice.randint(*work.prompt), dice.randint(*work.answer))
        self._calls[name] = call
        workflow.running += 1
        is_poison = workflow.tenant == OTHER and self._poisoned
        app, agent = ("app", f"agent {workflow.left}") if not is_poison else (name, name)
        request = self._request(name, workflow.tenant, app, agent, call.prompt, workflow)
        self.runtime.feed(Arrived(request))

    def _request(
        self,
        name: str,
        tenant: str,
        app: str,
        agent: str,
        prompt: int,
        workflow: _Workflow | None = None,
    ) -> Request:
        now = self.clock.now()
        return Request(
            id=name,
            tenant=tenant,
            workflow_id=name if workflow is None else workflow.id,
            app=app,
            agent=agent,
            model="m",
            workflow_started_at=now if workflow is None else workflow.began_at,
            arrived_at=now,
            prompt_tokens=prompt,
            completion_tokens=EXPECTED_COMPLETION_TOKENS,
        )

    def dispatch(self, command: Dispatch) -> None:
        call = self._calls.get(command.request_id)
        if call is None:  # of the names alone, which are cancelled at once
            return
        call.instance_id = command.instance_id
        name = command.request_id
        prompt = (PromptPiece(name, call.prompt),)
        made = EngineCall(id=name, prompt=prompt, completion_tokens=call.answer)
        self.fleet.add(command.instance_id, made)

    def refuse(self, command: Refuse) -> None:
        assert command.reason == "cancelled", command.reason
        call = self._calls.pop(command.request_id)
        if call.instance_id is not None:
            self.fleet.abort(call.instance_id, command.request_id)

    def _cancel(self, workflow: _Workflow) -> None:
        if workflow.running:
            self.runtime.feed(WorkflowEnded(workflow.tenant, workflow.id, cancelled=True))

    def seen(self, progress: CallProgress) -> None:
        name = progress.call_id
        if progress.what == "first_token":
            self.runtime.feed(FirstToken(name))
            return
        call = self._calls.pop(name)
        workflow, now = call.workflow, self.clock.now()
        ended = Finished(name, prompt_tokens=call.prompt, completion_tokens=call.answer)
        self.runtime.feed(ended)
        self.calls[workflow.tenant] += now >= self._measured_from
        workflow.running -= 1
        if workflow.left:
            workflow.left -= 1
            self._call(workflow)
        elif not workflow.running:
            self.runtime.feed(WorkflowEnded(workflow.tenant, workflow.id))
            if workflow.tenant == HONEST and workflow.began_at >= self._measured_from:
                self.latencies_s.append((now - workflow.began_at) / SECOND)
