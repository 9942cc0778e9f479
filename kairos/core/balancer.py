"""Balancer: facts in, commands out. No clock, no I/O, no randomness.

A request waits in the queue of its model. Any fact that could free capacity drains the queues
(`dispatching.py`).
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from kairos.core.admission import GIVES_UP, Admission
from kairos.core.core_names import MAX_WAITING
from kairos.core.dispatcher.available import within_memory
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.placement import Placement
from kairos.core.dispatching import Dispatching
from kairos.core.entitlements import ALIKE, Entitlements
from kairos.core.events import (
    Arrived,
    Bounced,
    Cancelled,
    Command,
    Dispatch,
    EntitlementsChanged,
    Event,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    PlanDeclared,
    PolicyChosen,
    PrefillFailed,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    Started,
    Tick,
    WorkflowEnded,
)
from kairos.core.faults.faults import Faults
from kairos.core.faults.quarantine import SUSPICION_US
from kairos.core.model import Budget, Request
from kairos.core.refusals import REFUSALS
from kairos.core.scheduler.budgets import UNLIMITED
from kairos.core.scheduler.fair_queueing import FairQueueing
from kairos.core.scheduler.guard import MakeGuard, PatienceGuard
from kairos.core.scheduler.policies import Policy
from kairos.core.scheduler.queue import BACKFILL, MAX_WAIT_US, PASSED_OVER
from kairos.core.scheduler.queues import WaitQueues
from kairos.core.scheduler.service_order import QueuedCall, service_order
from kairos.core.scheduler.work_estimates import WorkEstimates
from kairos.core.workflow_tracker import IDLE_US, WorkflowKey, workflow_key

_FREES_NO_ROOM = frozenset({WorkflowEnded, ProfilesLearnt, PlanDeclared})


class Balancer:
    """Owner of all waiting requests and bookings. Only `handle` and `replay` change them."""

    def __init__(
        self,
        policy: Callable[[WorkEstimates], Policy],
        placement: Callable[[Ledger], Placement],
        *,
        max_waiting: int = MAX_WAITING,
        max_wait_us: int = MAX_WAIT_US,
        idle_us: int = IDLE_US,
        guard: MakeGuard = PatienceGuard,
        backfill: int = BACKFILL,
        passed_over: float = PASSED_OVER,
        budget: Budget = UNLIMITED,
        tenant_share: float = 1,
        suspicion_us: int = SUSPICION_US,
        entitlements: Entitlements = ALIKE,
    ) -> None:
        """Start without instances.

        Args:
            policy: creates the policy.
            placement: creates the placement.
            max_waiting: maximum number of waiting requests.
            max_wait_us: time in the queue after which a request is refused.
            idle_us: time without a fact after which a workflow is forgotten.
            guard: creates the guard against starvation.
            backfill: see `core/scheduler/queue.py`.
            passed_over: see `core/scheduler/queue.py`.
            budget: maximum that any workflow may use.
            tenant_share: see `admission.py`.
            suspicion_us: maximum wait of a call that may have killed an instance, to run alone.
            entitlements: weights, classes of service and quotas.
        """
        self.estimates = WorkEstimates(idle_us=idle_us)
        self.ledger = Ledger(self.estimates)
        fairness = FairQueueing(entitlements.weights, entitlements.classes)
        self._queues = WaitQueues(
            policy, self.estimates, fairness, max_wait_us=max_wait_us,
            guard=guard, backfill=backfill, passed_over=passed_over,
        )  # fmt: skip
        self.waiting_us = self._queues.waiting_us  # predicted work of waiting requests, by model
        self._workflow_of: dict[str, WorkflowKey] = {}  # of all present requests
        self.faults = Faults(suspicion_us)
        known = self.estimates, self.ledger, self._queues, self.faults
        self._admission = Admission(
            *known, max_waiting=max_waiting, budget=budget,
            tenant_share=tenant_share, idle_us=idle_us,
        )  # fmt: skip
        self._admission.apply_quotas(entitlements.quotas, 0)
        self.entitlements = entitlements  # the ones in force
        self._dispatching = Dispatching(*known, placement(self.ledger), self._admission)
        self.at = 0  # time of the last fact
        # The handler of each kind of fact.
        self._taken: dict[type, Callable[[Any, int], None]] = {
            Arrived: self._enqueue_call,
            FirstToken: lambda event, at: self.ledger.record_first_token(event.request_id, at),
            **dict.fromkeys((Finished, Failed, Cancelled), self._end_call),
            Bounced: self._return_call,
            PrefillFailed: self._go_on_without_prefill,
            Progressed: lambda event, at: self.ledger.record_progress(event.completion_tokens, at),
            InstanceStatus: self.ledger.record_status,
            InstanceJoined: self._add_instance,
            InstanceLeft: self._remove_instance,
            WorkflowEnded: self._end_workflow,
            ProfilesLearnt: self._apply_profiles,
            PlanDeclared: lambda event, at: self.estimates.declare(event),  # noqa: ARG005
            EntitlementsChanged: self._apply_entitlements,
            PolicyChosen: lambda event, at: self._queues.apply_policy(event.policy, at),
            **dict.fromkeys((Started, Tick), lambda event, at: None),  # noqa: ARG005
        }

    @property
    def waiting(self) -> int:
        return len(self._queues)

    @property
    def tick_at(self) -> int | None:
        """Return when the next `Tick` is needed.

        That is when a wait is too long, an instance may be tried again, or a workflow's time is up.
        """
        instants = [self._admission.next_due_at]
        if self._queues:
            instants.append(self.faults.next_at(self._dispatching.drained_at, self.at))
        return min((each for each in instants if each is not None), default=None)

    def in_flight(self) -> list[tuple[Request, str | None]]:
        """Return all present requests by arrival, with the instance of each running one."""
        return [(each, self.ledger.instance_of(each.id)) for each in self.estimates.requests()]

    def queued(self, most: int) -> list[QueuedCall]:
        """Return the first `most` waiting calls, in the predicted order of dispatch."""
        return service_order(self._queues, most)

    def handle(self, event: Event, at: int) -> list[Command]:
        """Apply one fact, and return the resulting commands in order.

        Facts about unknown requests (late, repeated) have no effect. `at` must not decrease.

        Raises:
            NoInstance, ModelNotFound, NeverFits, BudgetExceeded, QuotaExceeded, QueueFull,
                ShareUsed, WorkflowCancelled, CallBreaksEngines, InvalidRequest: the fact is
                refused, and nothing has changed.
        """
        assert at >= self.at, f"{at} is before {self.at}"
        if type(event) is Arrived:
            if event.request.id in self._workflow_of:
                self._advance_time(at)
                return []
            # Checked before anything changes: a refused call leaves no trace.
            self._admission.check(event, at)
        self._advance_time(at)
        self._taken[type(event)](event, at)
        if self.faults.quarantine:
            self._release_quarantined(event, at)
        if type(event) in GIVES_UP and (given_up := self._admission.calls_to_refuse(event, at)):
            return self._refuse(given_up, at) + self._dispatching.drain(at)
        return [] if type(event) in _FREES_NO_ROOM else self._dispatching.drain(at)

    def replay(self, record: Record) -> None:
        """Apply one fact with another balancer's decisions on it, and decide nothing.

        Replaying a whole log restores the state of the balancer that wrote it. Replaying a log from
        a later point restores the state of all requests that arrived in it; earlier ones are
        unknown, and facts and decisions about them have no effect. Decreasing times, as between
        hosts, count as the latest one.
        """
        event, at = record.event, max(record.at, self.at)
        self._advance_time(at)
        if type(event) is Arrived and event.request.id in self._workflow_of:
            return
        self._taken[type(event)](event, at)
        if self.faults.quarantine:
            self._release_quarantined(event, at)
        self.faults.take_poisonous()  # discarded: the record has the refusals
        here = [each for each in record.commands if each.request_id in self._workflow_of]
        refused = self._refuse([each for each in here if isinstance(each, Refuse)], at)
        dispatched = {
            each.request_id: each
            for each in here
            if isinstance(each, Dispatch) and each.request_id not in self.ledger
        }
        if dispatched or refused or type(event) not in _FREES_NO_ROOM:
            self._dispatching.drain(at, deque(dispatched.values()))

    def _advance_time(self, at: int) -> None:
        self.at = at
        if self._queues.renewing:
            self._queues.renew_some()

    def _end_call(self, event: Finished | Failed | Cancelled, at: int) -> None:
        if event.request_id in self._workflow_of:
            self.faults.learn_from_end(event, self.ledger, at)
            finished = event if type(event) is Finished else None
            self._rekey(self._remove_call(event.request_id, at, finished))

    def _return_call(self, event: Bounced, at: int) -> None:
        if event.request_id in self.ledger:
            self.faults.learn_from_end(event, self.ledger, at)
            self._requeue_call(event.request_id, at, is_fault=event.by_instance)

    def _go_on_without_prefill(self, event: PrefillFailed, at: int) -> None:
        self.faults.prefill_failed(event, self.ledger, at)
        self.ledger.prefills.forget_prefill(event.request_id, None, at)

    def _release_quarantined(self, event: Event, at: int) -> None:
        """Release calls from quarantine, if the fact allows it."""
        if type(event) not in _FREES_NO_ROOM:
            for request_id in self.faults.apply_fact(event, at):
                self._queues.bring_back(request_id)

    def _end_workflow(self, event: WorkflowEnded, at: int) -> None:  # noqa: ARG002
        workflow = event.tenant, event.workflow_id
        self.estimates.close_workflow(workflow, cancelled=event.cancelled)
        self._admission.on_workflow_end(event)
        if not event.cancelled:
            self._rekey(workflow)

    def _apply_profiles(self, event: ProfilesLearnt, at: int) -> None:  # noqa: ARG002
        self.estimates.learn(event)
        self._queues.start_renewing()

    def _apply_entitlements(self, event: EntitlementsChanged, at: int) -> None:
        entitlements = self.entitlements = event.entitlements
        self._queues.share_out(FairQueueing(entitlements.weights, entitlements.classes), at)
        self._admission.apply_quotas(entitlements.quotas, at)

    def _add_instance(self, event: InstanceJoined, at: int) -> None:
        self.ledger.add_instance(event.instance)
        self._queues.forget_pace()
        self.faults.add_instance(event.instance.id)
        self._admission.learn_models(event.instance)
        self._fit_to_memory(at)

    def _remove_instance(self, event: InstanceLeft, at: int) -> None:
        self.ledger.remove_instance(event.instance_id)
        self._admission.forget_tries_on(event.instance_id)
        self._fit_to_memory(at)
        self.faults.remove_instance(event, at)

    def _fit_to_memory(self, at: int) -> None:
        """Cap the estimated prompt lengths of waiting calls to the largest present instance.

        Calls that were assumed to need a larger instance are queued again.
        """
        for (_, model), queue in self._queues.open().items():
            serving = self.ledger.served.serving(model)
            for request in [*queue.requests()] if serving else []:
                fitted = within_memory(request, serving)
                if fitted is not request:
                    self._queues.remove(request, at, counts=False)
                    self.estimates.resize(fitted)
                    aside = self.faults.is_aside(request.id)
                    if aside or self._admission.has_returned(request.id):
                        self._queues.push_back(fitted, at, aside=aside)
                    else:
                        self._queues.push(fitted, at)

    def _enqueue_call(self, event: Arrived, at: int) -> None:
        request = within_memory(event.request, self.ledger.served.serving(event.request.model))
        workflow = self._workflow_of[request.id] = workflow_key(request)
        self.estimates.add_call(request, at)
        self.ledger.retention.assign_context(request, at)
        self.faults.screen_call(request, event.body, at)
        if self.faults.is_aside(request.id):
            self._queues.push_back(request, at, aside=True)
        else:
            self._queues.push(request, at)
        self._admission.on_admission(request, at)
        if not self.estimates.is_alone(workflow):
            self._rekey(workflow)

    def _requeue_call(self, request_id: str, at: int, *, is_fault: bool) -> None:
        """Queue a booked request again."""
        booking = self.ledger.booking(request_id)
        assert booking is not None
        self._admission.on_return(request_id, booking.instance_id, is_fault=is_fault)
        request, more_us = booking.request, self.ledger.release_booking(request_id, at)
        self._queues.fairness.correct(request, more_us)
        self.estimates.note_bounce(request_id, at)
        serving = self.ledger.served.serving(request.model)
        if (fitted := within_memory(request, serving)) is not request:
            self.estimates.resize(request := fitted)
        self._queues.push_back(request, at, aside=self.faults.is_aside(request_id))
        self._rekey(workflow_key(request))

    def _remove_call(
        self, request_id: str, at: int, finished: Finished | None = None, *, drains: bool = True
    ) -> WorkflowKey:
        """Remove a request. `drains`: its departure counts for the drain rate of its queue."""
        workflow = self._workflow_of.pop(request_id)
        request = self.estimates.request(request_id)
        assert request is not None
        booking = self.ledger.booking(request_id)
        used_tokens = 0 if booking is None else booking.used_tokens(finished)
        self._admission.on_call_end(request, used_tokens, at)
        self.faults.forget_call(request_id)
        more_us = self.ledger.release_booking(request_id, at, finished)
        if booking is None:
            self._queues.remove(request, at, counts=drains)
        elif more_us:
            self._queues.fairness.correct(request, more_us)
        tokens = finished.completion_tokens if finished is not None else None
        self.estimates.remove_call(request_id, at, tokens, used_tokens)
        return workflow

    def _rekey(self, workflow: WorkflowKey) -> None:
        """Update the keys of the workflow's waiting calls, after something happened to it."""
        if self._queues:
            calls = self.estimates.in_flight(workflow)
            self._queues.rekey(filter(lambda each: each.id not in self.ledger, calls))

    def _refuse(self, requests: list[Refuse], at: int) -> list[Command]:
        """Remove refused requests.

        Keys are updated once all are removed, not after each, which would be slow for a wide
        fan-out.
        """
        workflows = [
            self._remove_call(each.request_id, at, drains=not REFUSALS[each.reason].at_arrival)
            for each in requests
        ]
        for workflow in dict.fromkeys(workflows):
            self._rekey(workflow)
        return [*requests]
