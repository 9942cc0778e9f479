"""What is in flight where. Occupancy is derived from bookings, so the two cannot disagree."""

from collections.abc import Iterator, Mapping
from itertools import count
from statistics import median

from kairos.core.dispatcher.booking import Booking, learn_speed
from kairos.core.dispatcher.busy import BusyInstances
from kairos.core.dispatcher.demand import Curves, Lengths, limit_of
from kairos.core.dispatcher.in_flight import InFlightTable
from kairos.core.dispatcher.instance_health import InstanceHealth
from kairos.core.dispatcher.kv_retention import KvRetention
from kairos.core.dispatcher.prefills import PrefillsElsewhere
from kairos.core.dispatcher.prefixes import PrefixIndex
from kairos.core.dispatcher.prompts_under_way import PromptsUnderWay
from kairos.core.dispatcher.served import ServedInstances
from kairos.core.dispatcher.service_cost import service_us
from kairos.core.dispatcher.spare_calls import SpareCalls
from kairos.core.dispatcher.typical_latency import TypicalLatencies
from kairos.core.events import Finished, InstanceStatus
from kairos.core.model import EXPECTED_COMPLETION_TOKENS, Instance, Request

_PATIENCE = 3  # times what a prompt is expected to take, until it is no longer waited for


class Ledger:
    """The instances, the requests in flight on them, and what facts say of both."""

    def __init__(self, lengths: Lengths) -> None:
        self.served = ServedInstances()
        self.instances = self.served.by_id
        self.prompts = PromptsUnderWay()
        self.prefixes = PrefixIndex()
        known = self.instances, self.prompts, self.prefixes
        self.prefills = PrefillsElsewhere(*known, self._changed)
        self.retention = KvRetention()
        self.health = InstanceHealth()
        self.curves = Curves()
        self.lengths = lengths
        self.latencies = TypicalLatencies(lengths)
        self._flights: dict[str, InFlightTable] = {}  # by instance id
        # By instance id: after which change and when `held_tokens` was asked last, and its answer.
        self._held: dict[str, tuple[int, int, float]] = {}
        self._booking_of: dict[str, Booking] = {}
        self._further: dict[str, int] = {}  # sequences beyond one a request, by instance id
        self._speeds = self.served.speeds
        self.busy, self.spare = BusyInstances(self.prompts), SpareCalls()
        self.changes = 0
        # Instance id -> number of its latest change; the latest is the last.
        self._versions: dict[str, int] = {}
        self._bookings = count(1)
        self._last_booking: dict[str, int] = {}  # instance id -> number of the booking

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._booking_of

    def __len__(self) -> int:
        return len(self._booking_of)

    def join(self, instance: Instance) -> None:
        """Add an instance, or replace its limits; what is booked there stays booked."""
        self.served.join(instance)
        self._flight_there(instance.id)
        self.prefixes.join(instance)
        self._changed(instance.id)

    def leave(self, instance_id: str) -> None:
        """Nothing more can be booked there; what runs there stays booked until it ends."""
        self.served.leave(instance_id)
        self._last_booking.pop(instance_id, None)
        self.prefixes.leave(instance_id)
        if instance_id in self._flights:  # nothing is known any more of what they share
            self._flights[instance_id].all_changed()
        self.retention.leave(instance_id)
        self.health.forget(instance_id)
        self._held.pop(instance_id, None)
        self.busy.forget(instance_id)
        self._forget_if_empty(instance_id)

    def instance_of(self, request_id: str) -> str | None:
        """Where the request is in flight."""
        booking = self._booking_of.get(request_id)
        return None if booking is None else booking.instance_id

    def booking(self, request_id: str) -> Booking | None:
        return self._booking_of.get(request_id)

    def flight(self, instance_id: str) -> InFlightTable:
        """What is in flight on an instance that is here."""
        return self._flights[instance_id]

    def version(self, instance_id: str) -> int:
        """Rises when what is known of the instance's bookings changes, even if it was away."""
        return self._versions.get(instance_id, 0)

    def changed_since(self, version: int) -> Iterator[str]:
        """Ids of the instances that have a later one."""
        for instance_id, latest in reversed(self._versions.items()):
            if latest <= version:
                return
            yield instance_id

    def last_booking(self, instance_id: str) -> int:
        """The number of the latest booking there since it joined, of all bookings; 0: none."""
        return self._last_booking.get(instance_id, 0)

    def running(self, instance_id: str) -> int:
        """Count the sequences of the requests in flight on the instance."""
        flight = self._flights.get(instance_id)
        return len(flight) + self._further.get(instance_id, 0) if flight is not None else 0

    def takes_more(self, instance: Instance, at: int) -> bool:
        """Whether it is not busy."""
        is_full = self.running(instance.id) >= instance.max_num_seqs
        return not is_full and not self.busy.is_spent(instance, at)

    def takes_more_in_us(self, instance: Instance, at: int) -> float:
        """How long it is likely to be until `takes_more`; 0: it does."""
        if self.takes_more(instance, at):
            return 0.0
        speed, running = self._speeds[instance.id], self.running(instance.id)
        wait_us = speed.compute_us(self.prompts.computing(instance.id, at)[0])
        if running >= instance.max_num_seqs:  # answers end one after the other
            left = EXPECTED_COMPLETION_TOKENS / 2 * speed.token_us(running)
            wait_us = max(wait_us, left / running)
        return wait_us

    def held_tokens(self, instance_id: str, at: int) -> float:
        """KV tokens that calls hold there now, as far as it is known: prompts, each stretch that
        several share counted once, answers so far, and half a block that each does not fill."""
        known = self._held.get(instance_id)
        if known is not None and known[0] == self.changes and known[1] == at:
            return known[2]
        flight = self._flights[instance_id]
        tokens = flight.prompt_tokens + flight.generated_tokens(at, self.token_us(instance_id))
        tokens -= self.shared_tokens(instance_id)
        tokens += len(flight) * self.unfilled_tokens(instance_id)
        self._held[instance_id] = self.changes, at, tokens
        return tokens

    def unfilled_tokens(self, instance_id: str) -> float:
        """Of its last block, a call there leaves so much free, on average."""
        instance = self.instances.get(instance_id)
        return (instance.block_size - 1) / 2 if instance is not None else 0.0

    def shared_tokens(self, instance_id: str) -> float:
        """Of the prompts there: what several have in common, all but once. However different the
        lengths are that are told of it, no more than all prompts but the longest."""
        shared = self.prefixes.shared_tokens(instance_id)
        flight = self._flights[instance_id]
        if not shared or len(flight) < 2:
            return 0.0
        most = flight.prompt_tokens - flight.longest_prompt
        return min(most, shared)

    def token_us(self, instance_id: str) -> float:
        """How long a token of each answer takes on the instance, as it is loaded now."""
        speed = self._speeds.get(instance_id)
        return speed.token_us(self.running(instance_id)) if speed is not None else 1e12

    def book(self, request: Request, instance_id: str, at: int) -> float:
        """The instance need not have joined (yet): others book too, and their news may be late.
        Returns what the call is expected to cost, in µs of the instance (`service_cost.py`)."""
        assert request.id not in self._booking_of
        self._waits_no_more(request.id)
        cached = self.prefixes.begin(request, instance_id, at)
        booking = self._booking_of[request.id] = Booking(request, instance_id, at, cached)
        speed = self._speeds.get(instance_id)
        computed = request.prompt_tokens - cached
        prefill_us = speed.prefill_us(computed) if speed is not None else 0
        until = at + int(_PATIENCE * prefill_us)
        known = self.lengths.completion_tokens(request)
        instance = self.instances.get(instance_id)
        if instance is not None and speed is not None:
            answer = request.completion_tokens if known is None else known.mean
            booking.computed, booking.beside = computed, self.running(instance_id)
            booking.computing_us = speed.computing_us(prefill_us, booking.beside)
            took_us = self.lengths.call_us(request)
            lengths = request.prompt_tokens, cached, answer
            booking.charged_us = service_us(booking, instance, speed, took_us, lengths)
        self._flight_there(instance_id).add(
            request.id,
            curve=self.curves.take(self.lengths.kind(request), request, known),
            prompt=request.prompt_tokens,
            begun_at=at,
            lasts_us=self.latencies.typical_us(request),
            first_at=at + int(prefill_us),
            grows_from=until,
            limit=limit_of(request),
        )
        if request.sequences > 1:
            self._further[instance_id] = self._further.get(instance_id, 0) + request.sequences - 1
        self.prompts.begin(instance_id, request.id, computed, until)
        self.spare.begin(request, instance_id)
        self._last_booking[instance_id] = next(self._bookings)
        self._changed(instance_id)
        return booking.charged_us

    def _flight_there(self, instance_id: str) -> InFlightTable:
        flight = self._flights.get(instance_id)
        if flight is None:
            flight = self._flights[instance_id] = InFlightTable()
        return flight

    def curve_of(self, request: Request) -> int:
        """The row of `curves` for a request that has not begun."""
        known = self.lengths.completion_tokens(request)
        return self.curves.row(self.lengths.kind(request), request, known)

    def first_token(self, request_id: str, at: int) -> None:
        booking = self._booking_of.get(request_id)
        if booking is not None and booking.first_token_at is None:
            booking.first_token_at = at
            self._grown(booking, max(1, booking.generated), at)
            self._changed(booking.instance_id)

    def progressed(self, completion_tokens: Mapping[str, int], at: int) -> None:
        """Answers are so long by now. A count that is behind what was told before is late news."""
        token_us: dict[str, list[float]] = {}  # by instance id, of each answer
        for request_id, tokens in completion_tokens.items():
            booking = self._booking_of.get(request_id)
            if booking is None or tokens < booking.generated:
                continue
            there = token_us.setdefault(booking.instance_id, [])
            if 0 < booking.generated < tokens:
                took_us = at - self._flights[booking.instance_id].told_at(request_id)
                there.append(took_us / (tokens - booking.generated))
            self._grown(booking, tokens, at)
        for instance_id, found in token_us.items():
            self._changed(instance_id)
            if found and (speed := self._speeds.get(instance_id)) is not None:
                speed.token_took(median(found), self.running(instance_id))  # some are held up

    def _grown(self, booking: Booking, tokens: int, at: int) -> None:
        booking.generated = tokens
        self.prompts.end(booking.instance_id, booking.request.id)
        if self.prefills:
            self.prefills.computed(booking.request.id)
        self._flights[booking.instance_id].told(booking.request.id, tokens, at)

    def status(self, status: InstanceStatus, at: int) -> None:
        instance = self.instances.get(status.instance_id)
        says_nothing = status == InstanceStatus(status.instance_id)  # but that it is there
        if instance is not None and not says_nothing:
            booked = self.held_tokens(instance.id, at)
            silent = self.prompts.requests(instance.id)  # nothing was heard of these
            unheard = sum(self._booking_of[each].request.prompt_tokens for each in silent)
            held = max(0.0, booked - unheard), booked
            self.health.told(status, instance, held, self.running(instance.id), at)

    def release(self, request_id: str, at: int, finished: Finished | None = None) -> float:
        """Give the booking back, if there is one: news may be late or repeated. Returns by how much
        the call has cost more than was expected, in µs of the instance."""
        booking = self._booking_of.pop(request_id, None)
        if booking is None:
            self._waits_no_more(request_id)
            return 0.0
        instance_id = booking.instance_id
        speed, instance = self._speeds.get(instance_id), self.instances.get(instance_id)
        if finished is not None and speed is not None:
            learn_speed(speed, booking, finished, self.running(instance_id), at)
        lengths = booking.lengths(finished)
        answer, more_us = lengths[2], 0.0
        if instance is not None and speed is not None:
            took_us = at - booking.at
            more_us = service_us(booking, instance, speed, took_us, lengths) - booking.charged_us
        self._flights[instance_id].remove(request_id, answer)
        self._end_further(booking.request, instance_id)
        self.prompts.end(booking.instance_id, booking.request.id)
        self.curves.give_back(request_id)
        self.spare.end(booking.request, instance_id, at)
        cached = finished.cached_tokens if finished is not None else None
        if self.prefills:
            cached = self.prefills.ended(request_id, cached, at)
        self.prefixes.end(booking.request, instance_id, answer, cached, at)
        if finished is not None and instance is not None and instance.prefix_caching:
            context = booking.request.prompt_tokens + answer
            fill_us = self._speeds[instance_id].compute_us(instance.kv_tokens or 0)
            self.retention.ended(booking.request, instance, context, fill_us, at)
        if not self.running(instance_id):
            self.health.nothing_runs(instance_id)
        self._changed(instance_id)
        self._forget_if_empty(instance_id)
        return more_us

    def _end_further(self, request: Request, instance_id: str) -> None:
        if request.sequences > 1:
            left = self._further.pop(instance_id) - (request.sequences - 1)
            if left:
                self._further[instance_id] = left

    def _waits_no_more(self, request_id: str) -> None:
        instance_id = self.retention.gone(request_id)
        if instance_id is not None:
            self._changed(instance_id)

    def _changed(self, instance_id: str) -> None:
        self.changes += 1
        self._versions.pop(instance_id, None)
        self._versions[instance_id] = self.changes
        instance = self.instances.get(instance_id)
        if instance is not None:
            self.busy.changed(instance, self.running(instance_id))

    def _forget_if_empty(self, instance_id: str) -> None:
        if instance_id not in self.instances and not self.running(instance_id):
            for known in (self._flights, self._held, self._last_booking, self._versions):
                known.pop(instance_id, None)
            for owner in (self.prompts, self.served, self.spare):
                owner.forget(instance_id)
