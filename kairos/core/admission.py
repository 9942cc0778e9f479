"""Admission of calls, and the decision which present calls to drop.

A call is refused on arrival if it could never be served, or not in time, if the queue is full, or
if its workflow has exceeded a limit or was cancelled. A present call is dropped when it has waited
too long, when its workflow is cancelled or out of time, and when no instance is left that could
take it. This module only decides; the balancer carries out the refusals.
"""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from kairos.core.agent_key import agent_key_of
from kairos.core.dispatcher.available import check_servable, stranded
from kairos.core.dispatcher.earliest_finish import OPTIMISM, least_us
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.entitlements import Quota, RateLimits
from kairos.core.errors import QueueFull, WorkflowCancelled
from kairos.core.events import (
    Arrived,
    Bounced,
    Event,
    Failed,
    InstanceJoined,
    InstanceLeft,
    Refuse,
    Tick,
    WorkflowEnded,
)
from kairos.core.fair_share import ShareUsed, is_within_share
from kairos.core.faults.faults import Faults
from kairos.core.model import Budget, Instance, Request
from kairos.core.scheduler.budgets import Budgets
from kairos.core.scheduler.kv_shares import KvShares
from kairos.core.scheduler.newcomers import Newcomers
from kairos.core.scheduler.queues import WaitQueues
from kairos.core.scheduler.quotas import Quotas
from kairos.core.scheduler.work_estimates import WorkEstimates
from kairos.core.shared_lru import SharedLru
from kairos.core.workflow_tracker import WorkflowKey, workflow_key

MAX_RETRIES = 2  # retries of a call, on instances that have not had it
# Facts after which present calls may be dropped.
GIVES_UP = frozenset({Arrived, InstanceJoined, InstanceLeft, Bounced, Failed, WorkflowEnded, Tick})
_NOBODY: frozenset[str] = frozenset()
_MAX_CANCELLED = 10_000  # cancelled workflows whose further calls are refused


class Admission:
    """Admission of one balancer, whose state it reads."""

    def __init__(
        self,
        estimates: WorkEstimates,
        ledger: Ledger,
        queues: WaitQueues,
        faults: Faults,
        *,
        max_waiting: int,
        budget: Budget,
        tenant_share: float,
        idle_us: int,
    ) -> None:
        """Start without quotas.

        At most `max_waiting` requests are in all queues together. `tenant_share`: of the queue, for
        a tenant that is alone in it (`fair_share.py`). `idle_us`: silence after which a workflow
        has ended.
        """
        self._estimates, self._ledger, self._queues = estimates, ledger, queues
        self._faults = faults
        self._max_waiting, self._tenant_share = max_waiting, tenant_share
        self._budgets = Budgets(estimates.positions, budget)
        self._idle_us = idle_us
        self._quotas: Quotas | None = None
        self._kv_shares: KvShares | None = None
        self._newcomers = Newcomers()
        # The latest ones; beyond the bound the tenant with most loses its oldest.
        self._cancelled: SharedLru[WorkflowKey, None] = SharedLru(_MAX_CANCELLED)
        self._models: set[str] = set()  # all models that an instance ever served
        self.tried: dict[str, set[str]] = {}  # see `Tried`
        self._returns: dict[str, int] = {}  # number of returns by a fault, by request id

    def apply_quotas(self, quotas: Sequence[Quota], at: int) -> None:
        """Apply these quotas from now on."""
        shares = {each.tenant: each.kv_share for each in quotas if each.kv_share is not None}
        running = filter(lambda each: each.id in self._ledger, self._estimates.requests())
        self._kv_shares = KvShares(shares, running) if shares else None
        if quotas or self._quotas is not None:
            self._quotas = self._quotas or Quotas(self._idle_us)
            self._quotas.replace_quotas(quotas, [*self._estimates.requests()], at)

    @property
    def next_due_at(self) -> int | None:
        """Return when the next request reaches its maximum wait, or a workflow its time limit."""
        instants = self._queues.next_due_at(), self._budgets.next_end_at
        return min((each for each in instants if each is not None), default=None)

    def check(self, arrived: Arrived, at: int) -> None:
        """Check an arriving call, before any state changes.

        Raises:
            NoInstance, ModelNotFound, NeverFits, BudgetExceeded, QuotaExceeded, QueueFull,
                ShareUsed, WorkflowCancelled, CallBreaksEngines, CallerBreaksEngines.
        """
        request = arrived.request
        if workflow_key(request) in self._cancelled:
            raise WorkflowCancelled
        self._faults.check(request, arrived.body, at)
        check_servable(request, self._ledger, self._models)
        self._budgets.check(request, at)
        if self._quotas is not None:
            self._quotas.check(request, at)
        if self._is_full(request, 1) and not self._may_take_a_place(request, at):
            retry_after_s = self._queues.retry_after_s(at)
            if len(self._queues) >= self._max_waiting:
                raise QueueFull(len(self._queues), retry_after_s)
            waiting = self._queues.of_tenant(request.tenant)
            raise ShareUsed(f"has {waiting} requests that wait", retry_after_s)

    def limits(self, request: Request, at: int) -> RateLimits | None:
        """Return what is left of the quotas that apply to the request."""
        return None if self._quotas is None else self._quotas.remaining_limits(request, at)

    def _is_full(self, request: Request, more: int) -> bool:
        """Return whether `more` requests of the tenant would exceed its share or the queue."""
        all_waiting = len(self._queues) + more
        if all_waiting < self._tenant_share * self._max_waiting:  # even if all are one tenant's
            return False
        free = self._max_waiting - all_waiting
        waiting = self._queues.of_tenant(request.tenant) + more
        return not is_within_share(waiting, free, self._tenant_share)

    def _may_take_a_place(self, request: Request, at: int) -> bool:
        """Return whether the request may replace another one in a full queue."""
        positions, workflow = self._estimates.positions, workflow_key(request)
        has_begun = positions.has_begun(workflow) and not positions.is_idle(workflow, at)
        return has_begun and self._gives_way_to(request) is not None

    def _gives_way_to(self, request: Request) -> Request | None:
        """Return the request to evict for this one; with shares, one of the same tenant."""
        return self._newcomers.newest(None if self._tenant_share == 1 else request.tenant)

    def on_admission(self, request: Request, at: int) -> None:
        """Record an admitted request, which the estimates already know."""
        self._budgets.track_call(request)
        if self._quotas is not None:
            self._quotas.charge_call(request, at)
        if not self._estimates.positions.has_begun(workflow_key(request)):
            self._newcomers.add(request)

    def at_kv_share(self) -> AbstractSet[str]:
        """Return the tenants that may use no more KV memory now."""
        if self._kv_shares is None:
            return _NOBODY
        return self._kv_shares.used_up(self._ledger.instances.values())

    def on_dispatch(self, request: Request) -> None:
        if self._kv_shares is not None:
            self._kv_shares.add_running(request)
        if request.id in self._newcomers:
            self._newcomers.remove_begun(self._estimates.in_flight(workflow_key(request)))

    def on_return(self, request_id: str, instance_id: str, *, is_fault: bool) -> None:
        """Record that a call waits again because the instance gave no answer.

        `is_fault`: of the instance or the call. An instance that merely lacks what is asked for
        does not count against the call, which may need something that only one instance has.
        """
        if instance_id in self._ledger.instances:
            self.tried.setdefault(request_id, set()).add(instance_id)
        self._returns[request_id] = self._returns.get(request_id, 0) + is_fault
        if self._kv_shares is not None:
            self._kv_shares.remove_running(request_id)

    def has_returned(self, request_id: str) -> bool:
        """Return whether an instance returned the call."""
        return request_id in self._returns

    def on_call_end(self, request: Request, used_tokens: int, at: int) -> None:
        """Forget a request that has ended.

        `used_tokens`: tokens of its prompt and answer, as far as it ran.
        """
        if request.id in self._returns:
            del self._returns[request.id]
            self.tried.pop(request.id, None)
        if self._kv_shares is not None:
            self._kv_shares.remove_running(request.id)
        self._newcomers.remove(request.id)
        if self._quotas is not None:
            self._quotas.settle_call(request, used_tokens, at)

    def on_workflow_end(self, event: WorkflowEnded) -> None:
        """Record the end of a workflow; if it is cancelled, its further calls are refused."""
        workflow = event.tenant, event.workflow_id
        if self._quotas is not None:
            self._quotas.close_workflow(workflow)
        if event.cancelled:
            self._cancelled.put(workflow[0], workflow, None)

    def learn_models(self, instance: Instance) -> None:
        self._models.update(instance.models)

    def forget_tries_on(self, instance_id: str) -> None:
        """Forget which calls were tried on an instance that left: it returns as a new process."""
        for request_id, tried in list(self.tried.items()):
            tried.discard(instance_id)
            if not tried:
                del self.tried[request_id]

    def calls_to_refuse(self, event: Event, at: int) -> list[Refuse]:
        """Return the present calls to refuse after this fact."""
        if type(event) is Arrived:
            return self._displaced(event.request, at)
        found = self._poisonous()
        ended = {each.request_id for each in found}
        return found + [each for each in self._gone(event, at) if each.request_id not in ended]

    def _gone(self, event: Event, at: int) -> list[Refuse]:
        """Return the calls that are out of time, no longer wanted, or can be placed nowhere."""
        match event:
            case InstanceJoined() | InstanceLeft():
                return [
                    self._nowhere(request)
                    for (_, model), queue in self._queues.open().items()
                    for request in stranded(
                        queue.requests(), self._ledger.served.serving(model), self.tried
                    )
                ]
            case Bounced(request_id=request_id):
                return self._bounced_for_good(request_id)
            case WorkflowEnded(cancelled=True):
                calls = self._estimates.in_flight((event.tenant, event.workflow_id))
                return [Refuse(each.id, each.model, "cancelled") for each in calls]
            case Tick():
                return self._due(at)
        return []

    def _displaced(self, request: Request, at: int) -> list[Refuse]:
        """Return the call to refuse because of this arrival.

        That is the request itself if it would be too late, or the call whose place it took.
        """
        if needs_us := self._needs_too_long(request, at):
            return [Refuse(request.id, request.model, "too_late", needs_us=needs_us)]
        if not self._is_full(request, 0):
            return []
        newest = self._gives_way_to(request)
        assert newest is not None, "or it would not have been let in"
        retry_after_s = self._queues.retry_after_s(at)
        return [Refuse(newest.id, newest.model, "queue_full", retry_after_s)]

    def _needs_too_long(self, request: Request, at: int) -> int | None:
        """Return the earliest possible duration of a waiting request if it misses its deadline."""
        if request.deadline_at is None:
            return None
        profile, _ = self._estimates.published(agent_key_of(request))
        needs_us = least_us(
            request, self._ledger.served.serving(request.model), self._ledger, profile
        )
        left_us = request.deadline_at - at
        worth_us = OPTIMISM * (left_us - needs_us)
        needs_us += self._queues.wait_us(request, at, worth_us=worth_us) / OPTIMISM
        return math.ceil(needs_us) if needs_us > left_us else None

    def _due(self, at: int) -> list[Refuse]:
        """Return calls of workflows that are out of time, and calls that have waited too long."""
        out_of_time = [
            Refuse(each.id, each.model, "out_of_time")
            for workflow in self._budgets.take_ended(at)
            for each in self._estimates.in_flight(workflow)
        ]
        ended = {each.request_id for each in out_of_time}
        waited = [
            Refuse(each.id, model, "waited_too_long")
            for (_, model), queue in self._queues.open().items()
            for each in queue.arrived_by(at - queue.max_wait_us)
            if each.id not in ended
        ]
        return out_of_time + waited

    def _bounced_for_good(self, request_id: str) -> list[Refuse]:
        """Return the refusal of a bounced call that has no retries or instances left."""
        request = self._estimates.request(request_id)
        if request is None or request_id in self._ledger:
            return []
        serving = self._ledger.served.serving(request.model)
        is_last = self._returns.get(request_id, 0) > MAX_RETRIES
        if is_last or stranded([request], serving, self.tried):
            return [self._nowhere(request)]
        return []

    def _poisonous(self) -> list[Refuse]:
        """Return refusals of waiting calls that were found to be poisonous."""
        names = [each for each in self._faults.take_poisonous() if each not in self._ledger]
        requests = [self._estimates.request(each) for each in names]
        return [Refuse(each.id, each.model, "breaks_engines") for each in requests if each]

    def _nowhere(self, request: Request) -> Refuse:
        reason: Literal["no_other", "no_instance"] = (
            "no_other" if request.id in self._returns else "no_instance"
        )
        return Refuse(request.id, request.model, reason)
