"""Present state: instances and their memory, the queue and the reasons for its order, what ended.

The values are the JSON of `/ui/data/now`, `/ui/data/queue` and `/ui/live`. Instants are µs since
the epoch (`_at`), durations seconds (`_s`).
"""

from itertools import islice
from typing import Any

import msgspec
import numpy as np

from kairos.core import (
    SECOND,
    SLOT_AT_US,
    SLOTS,
    Balancer,
    BySurvival,
    Floats,
    Instance,
    Ledger,
    Orchestrator,
    QueuedCall,
    Request,
    Standing,
)
from kairos.engines import Fleet, InstanceView
from kairos.gateway.operators.operators import Decides
from kairos.observe import Telemetry

QUEUE_PAGE = 50  # calls
_LONGEST = 5
_RENEWED_US = 2 * SECOND

_FORECAST_US = SECOND * np.arange(24)  # one number a second is enough to see
_WIDE = 2.0  # standard deviations: an instance rarely holds more


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in tokens. The lists are forecasts from now on, one value every `step_s`."""

    size: int | None  # null: not known
    held: int  # by calls, as Kairos counts them
    kept: int  # free, but reserved for calls that are likely to reuse their prefix
    step_s: float = 1.0
    expected: list[int]  # held and kept, on average
    high: list[int]  # rarely more


class InstanceNow(msgspec.Struct, frozen=True, kw_only=True):
    """An engine. If it is not in use, only the first four fields are known."""

    id: str
    state: str  # in_use, not_in_use, draining
    problem: str | None
    running: int  # calls
    models: tuple[str, ...] = ()
    max_num_seqs: int | None = None
    token_s: float | None = None  # time per output token at the present load
    circuit: str | None = None  # closed: in use; open: not used; half-open: on trial
    short_of_memory: bool = False  # reported by the engine; it gets no new calls
    memory: MemoryView | None = None


class LongestWait(msgspec.Struct, frozen=True, kw_only=True):
    """Call among the longest-waiting ones, wherever it stands in the queue."""

    id: str
    workflow_id: str
    tenant: str
    app: str | None
    agent: str | None
    service_class: str
    waited_s: float


class QueuedView(LongestWait, frozen=True, kw_only=True):
    place: int  # from 1 on, in the order in which they would go (`core/scheduler/service_order.py`)
    model: str | None
    standing: Standing
    expected_call_s: float
    expected_remaining_s: float  # of the workflow's work, from this call on
    deadline_s: float | None  # time left; negative: it has passed; null: the call has none
    prompt_tokens: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    offset: int
    calls: list[QueuedView]


class NowView(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    decides: bool  # false: another process of the pool does, and knows the rest
    workflows_open: int | None  # null: another process follows them
    running: int
    ended: dict[str, int]  # calls, by outcome, since the process began
    errors: dict[str, int]  # that calls were answered with, by code; refusals are among them
    instances: list[InstanceNow]  # troubled ones first
    queue: QueueView  # its first page
    longest: list[LongestWait] = []  # longest first


class Now:
    """Reader of this process's state. It changes nothing."""

    def __init__(
        self, brain: Decides, fleet: Fleet, telemetry: Telemetry, orchestrator: Orchestrator | None
    ) -> None:
        """Create it. `orchestrator`: None where another process follows the workflows."""
        self._brain, self._fleet, self._telemetry = brain, fleet, telemetry
        self._orchestrator = orchestrator
        self._memory = MemoryOutlook()
        self._whole: tuple[int, list[QueuedCall]] = -_RENEWED_US, []  # the order, and since when

    def view(self) -> NowView:
        balancer = self._brain.balancer
        return NowView(
            at=self._brain.now(),
            decides=self._brain.decides,
            workflows_open=None if self._orchestrator is None else len(self._orchestrator),
            running=len(balancer.ledger),
            ended={name: int(count) for name, count in self._telemetry.calls.counts().items()},
            errors=self._telemetry.errors(),
            instances=sorted(map(self._instance, self._fleet.views()), key=_is_well),
            queue=self.queue(0, QUEUE_PAGE),
            longest=self._longest(),
        )

    def _longest(self) -> list[LongestWait]:
        """Return the calls that have waited longest.

        Calls are known in the order of arrival, and running ones mostly came first: to skip 10,000
        running ones takes 1 ms.
        """
        balancer, now = self._brain.balancer, self._brain.now()
        ledger = balancer.ledger
        waiting = (each for each in balancer.estimates.requests() if each.id not in ledger)
        first = islice(waiting, min(_LONGEST, balancer.waiting))
        return [LongestWait(**_waiting(each, now)) for each in first]

    def queue(self, offset: int, limit: int) -> QueueView:
        """Return a page of the queue; the first pages are up to date.

        To compute the whole order takes 40 ms with 10,000 waiting calls, so other pages are up to
        `_RENEWED_US` old, without calls that have left since.
        """
        balancer, now, until = self._brain.balancer, self._brain.now(), offset + limit
        if until <= 2 * QUEUE_PAGE:
            calls = balancer.queued(until)
        else:
            found_at, calls = self._whole
            if not found_at <= now < found_at + _RENEWED_US:
                calls = balancer.queued(balancer.waiting)
                self._whole = now, calls
        return QueueView(
            total=balancer.waiting,
            offset=offset,
            calls=[
                self._queued(each, place, now)
                for place, each in enumerate(calls[offset:until], start=offset + 1)
                if _waits(balancer, each.request)
            ],
        )

    def _queued(self, call: QueuedCall, place: int, now: int) -> QueuedView:
        request = call.request
        left_us = self._brain.balancer.estimates.looked_at_us(request)
        deadline_at = request.deadline_at
        return QueuedView(
            **_waiting(request, now),
            place=place,
            model=request.model,
            standing=call.standing,
            expected_call_s=_s(call.work_us),
            expected_remaining_s=_s(left_us),
            deadline_s=None if deadline_at is None else _s(deadline_at - now),
            prompt_tokens=request.prompt_tokens,
        )

    def _instance(self, seen: InstanceView) -> InstanceNow:
        balancer = self._brain.balancer
        ledger, at = balancer.ledger, balancer.at
        instance = ledger.instances.get(seen.id)
        plain = InstanceNow(
            id=seen.id, state=seen.state, problem=seen.problem, running=seen.running
        )
        if instance is None:
            return plain
        return msgspec.structs.replace(
            plain,
            models=instance.models,
            max_num_seqs=instance.max_num_seqs,
            token_s=ledger.token_us(seen.id) / SECOND,
            circuit=balancer.faults.circuits.state(seen.id, self._brain.now()),
            short_of_memory=ledger.health.is_suspended(seen.id, at),
            memory=self._memory.view(ledger, instance, at),
        )


def _waits(balancer: Balancer, request: Request) -> bool:
    return balancer.estimates.request(request.id) is request and request.id not in balancer.ledger


def _waiting(request: Request, now: int) -> dict[str, Any]:
    return {
        "id": request.id,
        "workflow_id": request.workflow_id,
        "tenant": request.tenant,
        "app": request.app,
        "agent": request.agent,
        "service_class": request.service_class,
        "waited_s": _s(max(0, now - request.arrived_at)),
    }


def _is_well(instance: InstanceNow) -> bool:
    is_trusted = instance.circuit in (None, "closed") and not instance.short_of_memory
    return instance.state == "in_use" and is_trusted


def _s(us: float) -> float:
    return round(us / SECOND, 3)


class MemoryOutlook:
    """Forecast of the default placement, whichever placement decides.

    It changes nothing: its derived tables are its own, with slots of half a second
    (`core/dispatcher/occupancy.py`).
    """

    def __init__(self) -> None:
        self._survival = BySurvival()

    def view(self, ledger: Ledger, instance: Instance, at: int) -> MemoryView:
        """Return the view of an instance in use, at the time of the last fact."""
        kept = ledger.retention.kept(instance.id).by_slot(at)
        mean, spread = self._expected(ledger, instance, at)
        return MemoryView(
            size=instance.kv_tokens,
            held=round(ledger.held_tokens(instance.id, at)),
            kept=round(float(kept[0])),
            expected=_rounded(mean + kept),
            high=_rounded(mean + kept + _WIDE * spread),
        )

    def _expected(self, ledger: Ledger, instance: Instance, at: int) -> tuple[Floats, Floats]:
        """Return the tokens that calls will hold: mean and standard deviation, by slot."""
        flight = ledger.flight(instance.id)
        if not flight:
            return np.zeros(SLOTS), np.zeros(SLOTS)
        derived = self._survival.derived(ledger, instance, flight, at)
        times = derived.times(at)
        mean, variance, _ = derived.held
        return times * mean, np.sqrt(np.maximum(0.0, times * variance))


def _rounded(tokens: Floats) -> list[int]:
    return [round(each) for each in np.interp(_FORECAST_US, SLOT_AT_US, tokens).tolist()]
