"""Estimates for policies: what was learnt of agents, and the position of each open workflow."""

from collections.abc import Hashable, Iterator
from operator import attrgetter

from kairos.core.agent_key import AgentKey, agent_key_of
from kairos.core.events import PlanDeclared, ProfilesLearnt
from kairos.core.learnt import POOLED_AGENT, AgentProfile, Distribution, RemainingModel
from kairos.core.model import Request
from kairos.core.position import Position, features
from kairos.core.scheduler.declared_work import DeclaredPlans, DeclaredWork, untaught_us
from kairos.core.scheduler.output_lengths import OutputLengths
from kairos.core.shared_lru import SharedLru
from kairos.core.workflow_tracker import IDLE_US, WorkflowKey, WorkflowTracker, workflow_key


class PendingCall:
    """A request in flight, waiting or running, with its estimates."""

    call_us: int = 0
    remaining_us: float = 0.0
    epoch: int = -1  # epoch of the estimates that these two were computed in
    features: tuple[float, ...] | None = None  # of the position; None: not computed yet

    def __init__(
        self,
        request: Request,
        position: Position,
        plan: DeclaredWork | None = None,
    ) -> None:
        self.request = request
        self.position = position
        self.plan = plan  # the plan that its workflow follows


class ActiveCalls:
    """Calls of one workflow that are in flight at the same time."""

    def __init__(self, plan: DeclaredWork | None) -> None:
        self.plan = plan  # the plan declared when the first of them arrived
        self.standings: dict[str, PendingCall] = {}
        self.calls_us = 0  # expected latency of all of them
        self.longest: PendingCall | None = None  # with most remaining work; None: to be recomputed
        self.open_us: float | None = None  # of the plan's future calls; None: to be recomputed
        self.epoch = -1  # epoch of the estimates that these were computed in


_REMAINING_US = attrgetter("remaining_us")
_MAX_APPS = 1_000  # apps without any ended workflow


class WorkEstimates:
    """Estimates of work, changed only by facts. `epoch` is incremented after each learning step."""

    def __init__(self, *, idle_us: int = IDLE_US) -> None:
        self.epoch = 0
        self.kendall_tau: float | None = None  # between ranks and mean remaining work
        self.positions = WorkflowTracker(idle_us=idle_us)
        self._answers = OutputLengths()
        self._profiles: dict[AgentKey, AgentProfile] = {}
        self._models: dict[tuple[str, str], RemainingModel] = {}
        self._ranks: dict[AgentKey, float] = {}
        # By app without a model: the most service that any of its workflows got.
        self._attained_us: SharedLru[tuple[str, str], int] = SharedLru(_MAX_APPS)
        self._plans = DeclaredPlans()
        self._standings: dict[str, PendingCall] = {}
        self._together: dict[WorkflowKey, ActiveCalls] = {}

    def learn(self, event: ProfilesLearnt) -> None:
        for key in event.forgotten:
            self._profiles.pop(key, None)
            self._ranks.pop(key, None)
            if key[2] == POOLED_AGENT:
                self._models.pop(key[:2], None)
        for profile in event.profiles:
            self._profiles[profile.key] = profile
            self._answers.seed_from_profile(profile)
        self._ranks.update((rank.key, rank.rank) for rank in event.ranks)
        if event.kendall_tau is not None:
            self.kendall_tau = event.kendall_tau
        for model in event.models:
            self._models[model.tenant, model.app] = model
            self._attained_us.remove(model.tenant, (model.tenant, model.app))
        self.epoch += 1

    def declare(self, event: PlanDeclared) -> None:
        """Declare a plan for future calls; the keys of calls in flight do not change.

        Raises:
            InvalidRequest: the plan is invalid.
        """
        self._plans.declare(event)

    def add_call(self, request: Request, at: int) -> None:
        position, key = self.positions.record_arrival(request, at), workflow_key(request)
        together = self._together.get(key)
        if together is None:
            plans = self._plans
            plan = plans.of(request.tenant, request.app, request.agent) if plans else None
            together = self._together[key] = ActiveCalls(plan)
        standing = PendingCall(request, position, together.plan)
        self._standings[request.id] = together.standings[request.id] = standing
        together.open_us = None
        if together.epoch == self.epoch and together.longest is not None:
            self._fresh(standing)
            together.calls_us += standing.call_us
            if standing.remaining_us > together.longest.remaining_us:
                together.longest = standing

    def resize(self, request: Request) -> None:
        """Replace a waiting call by one with a shorter prompt."""
        self._standings[request.id].request = request

    def note_dispatch(self, request_id: str, at: int) -> None:
        self.positions.record_dispatch(request_id, at)

    def note_bounce(self, request_id: str, at: int) -> None:
        self.positions.record_bounce(request_id, at)

    def remove_call(
        self,
        request_id: str,
        at: int,
        completion_tokens: int | None = None,
        used_tokens: int = 0,
    ) -> None:
        """Record that a call finished, failed, was cancelled or refused; unknown ids are ignored.

        `used_tokens`: tokens of prompt and answer, as far as it ran.
        """
        self.positions.record_call_end(request_id, at, completion_tokens, used_tokens)
        standing = self._standings.pop(request_id, None)
        if standing is None:
            return
        key = workflow_key(standing.request)
        self._note_attained(standing.request, key)
        if completion_tokens is not None:
            self._answers.learn_answer(standing.request, completion_tokens)
        together = self._together[key]
        del together.standings[request_id]
        together.calls_us -= standing.call_us
        if standing is together.longest:
            together.longest = None
        if not together.standings:
            del self._together[key]

    def close_workflow(self, key: WorkflowKey, *, cancelled: bool = False) -> None:
        if self._plans and not cancelled:
            self._plans.learn_visits(key[0], *self.positions.visits(key), self.epoch)
        self.positions.end_workflow(key)

    def requests(self) -> Iterator[Request]:
        """Yield all waiting or running calls, in order of arrival."""
        for standing in self._standings.values():
            yield standing.request

    def workflows(self) -> Iterator[WorkflowKey]:
        """Return the workflows with waiting or running calls."""
        return iter(self._together)

    def request(self, request_id: str) -> Request | None:
        """Return a waiting or running call; None if the id is unknown."""
        standing = self._standings.get(request_id)
        return standing.request if standing is not None else None

    def is_alone(self, workflow: WorkflowKey) -> bool:
        """Return whether the workflow has exactly one call in flight."""
        together = self._together.get(workflow)
        return together is not None and len(together.standings) == 1

    def in_flight(self, workflow: WorkflowKey) -> Iterator[Request]:
        """Yield the waiting or running calls of the workflow, in order of arrival."""
        together = self._together.get(workflow)
        if together is not None:
            for standing in together.standings.values():
                yield standing.request

    def left_us(self, request: Request) -> float:
        """Return the expected latency of all remaining work of the request's workflow.

        That is what remains from the longest of its calls in flight on, plus the other calls in
        flight. With a declared plan: the calls in flight plus the plan's future calls.
        """
        together = self._together[workflow_key(request)]
        if together.longest is None or together.epoch != self.epoch:
            standings = [self._fresh(each) for each in together.standings.values()]
            together.longest = max(standings, key=_REMAINING_US)
            together.calls_us = sum([each.call_us for each in standings])
            together.epoch, together.open_us = self.epoch, None
        if together.plan is not None:
            if together.open_us is None:
                together.open_us = self._open_us(workflow_key(request), together.plan)
            return together.calls_us + together.open_us
        longest = together.longest
        return longest.remaining_us + together.calls_us - longest.call_us

    def whole_us(self, request: Request) -> float:
        """Return the expected latency of the whole workflow, ended calls included."""
        served_us, _ = self.positions.attained(workflow_key(request))
        return served_us + self.left_us(request)

    def follows_plan(self, request: Request) -> bool:
        """Return whether the estimate for a request in flight comes from a declared plan."""
        return self._standings[request.id].plan is not None

    def to_come_us(self, key: WorkflowKey) -> float | None:
        """Return the expected latency of the future calls of the workflow's declared plan.

        None if it follows no plan. The workflow must have calls in flight.
        """
        plan = self._together[key].plan
        return None if plan is None else self._open_us(key, plan)

    def _open_us(self, key: WorkflowKey, plan: DeclaredWork) -> float:
        plan.price(self.epoch, self._profiles)
        return plan.open_us(self.positions.visits(key)[1])

    def published(self, key: AgentKey) -> tuple[AgentProfile | None, float | None]:
        """Return what was learnt of exactly this agent, and its rank."""
        return self._profiles.get(key), self._ranks.get(key)

    def profile(self, request: Request) -> AgentProfile | None:
        """Return the profile of the agent, else of its app, tenant, or all; None: none known."""
        tenant, app = request.tenant, request.app or ""
        profiles = self._profiles
        return (
            profiles.get((tenant, app, request.agent or ""))
            or profiles.get((tenant, app, POOLED_AGENT))
            or profiles.get((tenant, POOLED_AGENT, POOLED_AGENT))
            or profiles.get((POOLED_AGENT, POOLED_AGENT, POOLED_AGENT))
        )

    def rank(self, request: Request) -> float | None:
        """Return the rank of the agent, else of its app, its tenant, or all; None: none known."""
        ranks = self._ranks
        if not ranks:
            return None
        tenant, app, _ = key = agent_key_of(request)
        if (rank := ranks.get(key)) is not None:
            return rank
        wider = (
            (tenant, app, POOLED_AGENT),
            (tenant, POOLED_AGENT, POOLED_AGENT),
            (POOLED_AGENT, POOLED_AGENT, POOLED_AGENT),
        )
        return next((ranks[each] for each in wider if each in ranks), None)

    def model(self, request: Request) -> RemainingModel | None:
        """Return the model of the app, else of its tenant, or all; None: none known."""
        models, tenant = self._models, request.tenant
        return (
            models.get((tenant, request.app or ""))
            or models.get((tenant, POOLED_AGENT))
            or models.get((POOLED_AGENT, POOLED_AGENT))
        )

    def kind(self, request: Request) -> Hashable:
        """Return the key of calls that share the same estimates."""
        return agent_key_of(request)

    def completion_tokens(self, request: Request) -> Distribution | None:
        """Return the distribution of answers to calls like this; None while unknown."""
        return self._answers.distribution(request)

    def latency_us(self, request: Request) -> Distribution | None:
        """Return the distribution of execution latency of calls like this; None while unknown."""
        profile = self.profile(request)
        return profile.call_us if profile is not None else None

    def call_us(self, request: Request) -> int:
        """Return the expected execution latency of the call alone, at least 1."""
        standing = self._standings.get(request.id)
        if standing is not None and standing.epoch == self.epoch and standing.request is request:
            return standing.call_us
        return _call_us(request, self.profile(request))

    def remaining_us(self, request: Request) -> float:
        """Return the expected latency of the workflow from this call on, itself included.

        The request must be in flight, since its position counts.
        """
        return self._fresh(self._standings[request.id]).remaining_us

    def looked_at_us(self, request: Request) -> float:
        """Return the same as `remaining_us`, for display only, without storing it.

        What was learnt of an app may change between two facts, and decisions must not depend on
        when estimates are displayed.
        """
        standing = self._standings[request.id]
        if standing.epoch == self.epoch:
            return standing.remaining_us
        profile = self.profile(request)
        seen = PendingCall(request, standing.position, standing.plan)
        seen.features, seen.call_us = standing.features, _call_us(request, profile)
        return self._estimate(seen, profile)

    def _fresh(self, standing: PendingCall) -> PendingCall:
        if standing.epoch != self.epoch:
            profile = self.profile(standing.request)
            standing.call_us = _call_us(standing.request, profile)
            standing.remaining_us = self._estimate(standing, profile)
            standing.epoch = self.epoch
        return standing

    def _estimate(self, standing: PendingCall, profile: AgentProfile | None) -> float:
        request = standing.request
        if standing.plan is not None:
            standing.plan.price(self.epoch, self._profiles)
            return max(1.0, standing.call_us + standing.plan.after_us(request.agent))
        model = self.model(request)
        if model is not None:
            if standing.features is None:
                standing.features = features(standing.position)
            estimate = model.remaining_us(request.agent or "", standing.features)
        else:
            estimate = standing.call_us if profile is None else profile.remaining_us.mean
        attained_us = self._attained_us.get((request.tenant, request.app or "")) or 0
        return max(1.0, estimate, attained_us)

    def _note_attained(self, request: Request, workflow: WorkflowKey) -> None:
        """Track the most service that a workflow of an app without a model got.

        While no workflow of an app has ended, general estimates are too low: short workflows end
        first. So a workflow is expected to need as much again as any workflow of its app got so
        far.
        """
        app = request.tenant, request.app or ""
        if app in self._models:
            return
        attained = self._attained_us
        known_us, (served_us, _) = attained.get(app), self.positions.attained(workflow)
        if known_us is None:
            if attained.has_room(request.tenant):
                attained.put(request.tenant, app, served_us)
        elif served_us > known_us:
            attained.put(request.tenant, app, served_us)
        else:
            attained.touch(request.tenant, app)


def _call_us(request: Request, profile: AgentProfile | None) -> int:
    if profile is not None:
        return max(1, int(profile.call_us.mean))
    return int(untaught_us(request.prompt_tokens, request.completion_tokens))
